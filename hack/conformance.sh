#!/usr/bin/env bash
# Compares ranks under torchrun with ranks under the agent (test/conformance), and runs the client's tests of imports and steps: with the
# oldest supported PyTorch and the newest available one, and the oldest and newest Python on this machine. Each pair gets a virtual
# environment of its own, some 5 GB, under /opt/holdfast-conformance (HOLDFAST_CONFORMANCE_DIR); --remove removes it after its tests. Pairs
# that cannot be installed are listed at the end. A named pair, the oldest and the newest must not be missing.
#
#   hack/conformance.sh [--remove] [VERSION/TORCH...]    such as 3.10/2.4.1; VERSION is a Python that is on PATH or under ~/.pyenv
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${HOLDFAST_CONFORMANCE_DIR:-/opt/holdfast-conformance}
remove=
if [ "${1:-}" = --remove ]; then remove=yes; shift; fi
# PyTorch 2.4 supports Python up to 3.12; 2.14 is the last that supports 3.10.
pairs=("$@") needed=("$@")
[ $# -gt 0 ] || { pairs=(3.10/2.4.1 3.10/2.14.1 3.13/2.15.0 3.14/2.15.0); needed=("${pairs[0]}" "${pairs[-1]}"); }

# interpreter VERSION: the path of that Python. A shim of pyenv would run another one in another folder.
interpreter() {
	local found
	found=$(find "${PYENV_ROOT:-$HOME/.pyenv}/versions" -maxdepth 3 -path "*/$1.*/bin/python$1" 2>/dev/null | sort -V | tail -1)
	[ -n "$found" ] || found=$(command -v "python$1") || return 1
	"$found" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null && echo "$found"
}

failed=() missing=()
# left_out PAIR WHY
left_out() {
	missing+=("$1: $2")
	[[ " ${needed[*]} " != *" $1 "* ]] || failed+=("$1: was not tried, and must be")
}

for pair in "${pairs[@]}"; do
	version=${pair%/*} torch=${pair#*/} venv=$dir/${pair/\//-torch}
	if ! python=$(interpreter "$version"); then
		left_out "$pair" "there is no python$version"
		continue
	fi
	if [ ! -e "$venv/.ready" ]; then
		echo "conformance: installing torch $torch for $python into $venv"
		rm -rf "$venv"
		mkdir -p "$dir"
		numpy=numpy
		[ "${torch%%.*}.$(cut -d. -f2 <<<"$torch")" != 2.4 ] || numpy='numpy<2'
		if ! { "$python" -m venv "$venv" && "$venv/bin/python3" -m pip install -q --no-cache-dir --disable-pip-version-check "torch==$torch" "$numpy" setuptools; }; then
			left_out "$pair" "torch $torch could not be installed"
			rm -rf "$venv"
			continue
		fi
		touch "$venv/.ready"
	fi
	echo "conformance: $pair"
	HOLDFAST_CONFORMANCE_PYTHON=$venv/bin/python3 hack/gotest.sh run -count=1 -timeout 30m -- ./test/conformance || failed+=("$pair: test/conformance")
	(cd ckptagent/python && PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python3" -m unittest -q tests.test_imports tests.test_site tests.test_steps) || failed+=("$pair: ckptagent/python/tests")
	[ -z "$remove" ] || rm -rf "$venv"
done
[ ${#missing[@]} = 0 ] || printf 'conformance: LEFT OUT: %s\n' "${missing[@]}"
[ ${#failed[@]} = 0 ] || { printf 'conformance: FAILED: %s\n' "${failed[@]}"; exit 1; }
