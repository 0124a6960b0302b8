#!/usr/bin/env bash
# Prepares /opt/holdfast-python, a world-readable folder with an interpreter
# of its own ("base") and a virtual environment with a pinned PyTorch ("venv").
# Pods mount it at the same path. HOLDFAST_PYTHON=/path/to/python3 takes the
# PyTorch of that interpreter (2.4 or newer) instead of downloading one.
#
# The marker .ready is written last and lists what was installed: a killed run is repeated, a complete one takes no time. --plan prints what
# would be downloaded, and does nothing.
set -euo pipefail
umask 022

torch=2.15.0
numpy=2.4.6
uv=0.13.9
dir=/opt/holdfast-python
marker=$dir/.ready
python=$dir/venv/bin/python3

say() { echo "python: $*"; }
die() { echo "python: $*" >&2; exit 1; }

if [ -n "${HOLDFAST_PYTHON:-}" ]; then
	wanted="HOLDFAST_PYTHON=$HOLDFAST_PYTHON, compiled"
else
	wanted="torch==$torch numpy==$numpy, compiled"
fi

# works takes a step of training. Later the folder is read-only, so every rank would recompile any module that is not compiled yet (half of
# a plain start): the step imports, and so compiles, what a job imports.
works() {
	env -u PYTHONDONTWRITEBYTECODE GLOO_SOCKET_IFNAME=lo "$python" - <<-'PY'
		import ctypes, sqlite3, ssl
		import torch, torch.distributed as dist
		import torch.distributed.run, torch.distributed.checkpoint, torch.distributed.fsdp, torch.utils.data
		dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
		model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
		model(torch.ones(1, 2)).sum().backward()
		torch.optim.Adam(model.parameters()).step()
		dist.destroy_process_group()
	PY
}

# whole: everything is installed, with or without the marker.
whole() {
	[ -x "$python" ] && [ -x "$dir/venv/bin/torchrun" ] || return 1
	"$python" -c 'import sys, importlib.metadata as m; sys.exit((m.version("torch").split("+")[0], m.version("numpy")) != tuple(sys.argv[1:]))' "$torch" "$numpy" 2>/dev/null &&
		works && "$python" -m pip check >/dev/null 2>&1
}

if [ "$(cat "$marker" 2>/dev/null)" = "$wanted" ]; then
	[ "${1:-}" = --plan ] || say "$dir is ready ($wanted)"
	exit 0
fi
if [ "${1:-}" = --plan ]; then
	if [ -z "${HOLDFAST_PYTHON:-}" ] && ! whole; then
		echo "PyTorch $torch with the libraries it insists on, about 3 GB from PyPI (5.6 GB in $dir; HOLDFAST_PYTHON=/path/to/python3 takes one that is there)"
	fi
	exit 0
fi

exec 9>/run/lock/holdfast-python
flock 9
if [ "$(cat "$marker" 2>/dev/null)" = "$wanted" ]; then
	say "$dir is ready ($wanted)"
	exit 0
fi

# copy_base PYTHON: its interpreter and standard library become $dir/base.
copy_base() {
	local exe lib version shared
	exe=$("$1" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')
	lib=$("$1" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
	version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
	say "copying $exe and $lib"
	mkdir -p "$dir/base/bin" "$dir/base/lib"
	cp "$exe" "$dir/base/bin/$version"
	ln -sf "$version" "$dir/base/bin/python3"
	(cd "$lib" && tar -c --exclude=./site-packages --exclude=./dist-packages --exclude=__pycache__ .) |
		(mkdir -p "$dir/base/lib/$version" && cd "$dir/base/lib/$version" && tar -x)
	shared=$("$1" -c 'import os, sysconfig as s; n = s.get_config_var("INSTSONAME") or ""; print(os.path.join(s.get_config_var("LIBDIR"), n) if ".so" in n else "")')
	if [ -n "$shared" ] && [ -e "$shared" ] && ldd "$exe" | grep -q "$(basename "$shared")"; then
		die "the interpreter $exe is built on the shared library $shared, which pods would not have: set HOLDFAST_PYTHON to one that holds it itself"
	fi
	"$dir/base/bin/python3" -c 'import sys, ssl, ctypes, sqlite3' || die "the copy of $exe does not run from $dir/base"
}

from_pypi() {
	local py=/usr/bin/python3
	"$py" -c 'import ensurepip' 2>/dev/null || die "$py has no venv module: apt-get install python3-venv"
	copy_base "$py"
	"$dir/base/bin/python3" -m venv "$dir/venv"
	say "installing torch $torch and numpy $numpy from PyPI (about 3 GB, a few minutes)"
	with_uv || with_pip
	whole || die "torch $torch is installed but does not take a step of training: remove $dir and try again"
}

# with_uv unpacks each file while it is downloaded, in a third of pip's time. If it fails, pip uses or replaces what it left.
with_uv() {
	local aside=$dir/uv ok=0
	"$python" -m pip install -q --no-cache-dir --disable-pip-version-check --no-compile --target "$aside" "uv==$uv" || return 1
	UV_CACHE_DIR=$aside/cache "$aside/bin/uv" pip install --no-progress --python "$python" "torch==$torch" "numpy==$numpy" 2>&1 |
		sed -u -n 's/^ *Downloading \(.*\)$/python:   \1/p; s/^Prepared.*/python:   installing/p; s/^\(error\|warning\|  *[×╰├].*\)/python: uv: &/p' || ok=1
	rm -rf "$aside"
	[ $ok = 0 ] || say "uv could not: trying pip"
	return $ok
}

with_pip() {
	"$python" -m pip install --no-cache-dir --disable-pip-version-check --no-compile --progress-bar off "torch==$torch" "numpy==$numpy" |
		sed -u -n 's/^ *Downloading \([^ ]*\) (\(.*\))$/python:   \1 (\2)/p; s/^Installing collected.*/python:   unpacking/p'
}

# check_given refuses an unusable HOLDFAST_PYTHON before anything is touched.
check_given() {
	[ -x "$HOLDFAST_PYTHON" ] || die "HOLDFAST_PYTHON=$HOLDFAST_PYTHON is not a program"
	found=$("$HOLDFAST_PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null) ||
		die "$HOLDFAST_PYTHON cannot import torch: install torch 2.4 or newer for it, or unset HOLDFAST_PYTHON"
	"$HOLDFAST_PYTHON" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 4))' ||
		die "$HOLDFAST_PYTHON has torch $found: 2.4 or newer is needed"
}

from_given() {
	local site into
	site=$("$HOLDFAST_PYTHON" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
	copy_base "$HOLDFAST_PYTHON"
	"$dir/base/bin/python3" -m venv --without-pip "$dir/venv"
	into=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	say "taking torch $found from $site"
	# Hard links share their files' permissions, which must not be changed.
	if [ -n "$(find "$site" ! -type l ! -perm -o=r -print -quit)" ] || ! cp -al "$site/." "$into/" 2>/dev/null; then
		cp -a "$site/." "$into/"
	fi
	printf '#!%s\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n' "$python" >"$dir/venv/bin/torchrun"
	chmod 755 "$dir/venv/bin/torchrun"
	works || die "torch does not work from $dir: packages of $HOLDFAST_PYTHON may lie outside $site"
}

if [ -z "${HOLDFAST_PYTHON:-}" ] && whole; then
	say "taking what is in $dir"
else
	case "${HOLDFAST_PYTHON:-}" in "$dir"/*) die "HOLDFAST_PYTHON lies inside $dir, which is made from it: unset it" ;; esac
	[ -z "${HOLDFAST_PYTHON:-}" ] || check_given
	rm -f "$marker"
	rm -rf "$dir/base" "$dir/venv"
	mkdir -p "$dir"
	if [ -n "${HOLDFAST_PYTHON:-}" ]; then from_given; else from_pypi; fi
fi
chmod -R a+rX "$dir"
chmod 755 "$dir"
echo "$wanted" >"$marker.new"
mv "$marker.new" "$marker"
say "$dir is ready ($wanted)"
