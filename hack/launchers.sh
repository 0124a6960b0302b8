#!/usr/bin/env bash
# Prepares /opt/holdfast-launchers, a virtual environment with the launchers and frameworks of hack/launchers.txt beside the PyTorch of
# /opt/holdfast-python, which it does not install again. Only tests need it. --plan prints what would be downloaded, and does nothing. The
# marker .ready is written last and lists what was installed: a killed run is repeated, a complete one takes no time.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

dir=/opt/holdfast-launchers
base=/opt/holdfast-python
python=$dir/bin/python3

say() { echo "launchers: $*"; }
die() { say "$*" >&2; exit 1; }

[ -e "$base/.ready" ] || die "$base is not ready: run hack/python.sh first"
wanted="$(sha256sum <hack/launchers.txt) $(cat "$base/.ready")"

is_ready() { [ "$(cat "$dir/.ready" 2>/dev/null)" = "$wanted" ]; }

end_if_ready() {
	if is_ready; then
		say "$dir is ready"
		exit 0
	fi
}

if [ "${1:-}" = --plan ]; then
	is_ready || echo "accelerate, deepspeed, lightning, torchvision and transformers with their dependencies, about 65 MB from PyPI (320 MB in $dir), for make test-launchers, test-hang and test-elastic-more"
	exit 0
fi

# One process at a time installs it, unless another one just has.
end_if_ready
exec 9>/run/lock/holdfast-launchers
flock 9
end_if_ready
rm -rf "$dir"
"$base/base/bin/python3" -m venv "$dir"
pip_install() { "$python" -m pip install -q --no-cache-dir --disable-pip-version-check --progress-bar off "$@"; }
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base/venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/holdfast-torch.pth"
say "installing accelerate, deepspeed, lightning, torchvision and transformers from PyPI (about 65 MB, one to three minutes)"
pip_install --no-deps setuptools==84.2.1
# deepspeed comes as source; its extensions are not compiled, and its build looks for PyTorch.
DS_BUILD_OPS=0 pip_install --no-deps --no-build-isolation -r hack/launchers.txt 2> >(grep -v DEPRECATION >&2)
printf '#!%s\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n' "$python" >"$dir/bin/torchrun"
chmod 755 "$dir/bin/torchrun"
"$python" -W ignore -c 'import accelerate, torch.distributed.run, torchvision' || die "the packages in $dir cannot be imported: remove it and try again"
chmod -R a+rX "$dir"
echo "$wanted" >"$dir/.ready.new"
mv "$dir/.ready.new" "$dir/.ready"
say "$dir is ready"
