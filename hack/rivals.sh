#!/usr/bin/env bash
# Prepares /opt/holdfast-rivals, a virtual environment with the launchers of hack/rivals.txt, which make bench-hang, bench-check and
# bench-elastic use. The marker .ready is written last and lists what was installed: a killed run is repeated, a complete one takes no time. A launcher
# that cannot be installed is named, and the others are installed: the benchmarks have a row "not_installed" for it.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

dir=/opt/holdfast-rivals
base=/opt/holdfast-python/base/bin/python3

say() { echo "rivals: $*"; }
die() { say "$*" >&2; exit 1; }

wanted=$(sha256sum <hack/rivals.txt)
is_ready() { [ "$(cat "$dir/.ready" 2>/dev/null)" = "$wanted" ]; }
end_if_ready() {
	if is_ready; then
		say "$dir is ready"
		exit 0
	fi
}

if [ "${1:-}" = --plan ]; then
	is_ready || echo "PyTorch 2.7.1, ft_launcher and dlrover-run, about 3 GB from PyPI (6 GB in $dir), for make bench-hang, bench-check and bench-elastic"
	exit 0
fi

end_if_ready
[ -x "$base" ] || die "$base is missing: run hack/python.sh first"
exec 9>/run/lock/holdfast-rivals
flock 9
end_if_ready
rm -rf "$dir"
"$base" -m venv "$dir"
pip_install() { "$dir/bin/python3" -m pip install -q --no-cache-dir --disable-pip-version-check --progress-bar off "$@"; }
base_of() { grep -v -E '^(#|nvidia-resiliency-ext|dlrover)' hack/rivals.txt; }
say "installing PyTorch and two launchers from PyPI (about 3 GB, a few minutes)"
mapfile -t common < <(base_of)
pip_install "${common[@]}"
while read -r rival; do
	pip_install "${common[@]}" "$rival" || say "$rival was refused: the benchmarks go on without it" >&2
done < <(grep -E '^(nvidia-resiliency-ext|dlrover)' hack/rivals.txt)
chmod -R a+rX "$dir"
echo "$wanted" >"$dir/.ready.new"
mv "$dir/.ready.new" "$dir/.ready"
say "$dir is ready"
