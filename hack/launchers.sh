#!/usr/bin/env bash
# Prepares /opt/holdfast-launchers, a virtual environment with the launchers and frameworks of hack/launchers.txt beside the PyTorch of
# /opt/holdfast-python, which it does not install again. Tests alone need it. --plan says what would be downloaded, and does nothing.
name=launchers
. "$(dirname "$0")/environment.sh"

wanted="$(sha256sum <hack/launchers.txt) $(cat "$base/.ready")"
if [ "${1:-}" = --plan ]; then
	is_ready || echo "accelerate, deepspeed, lightning and transformers with what they insist on, about 50 MB from PyPI (170 MB in $dir), for make test-launchers"
	exit 0
fi

begin
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base/venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/holdfast-torch.pth"
say "installing accelerate, deepspeed, lightning and transformers from PyPI (about 50 MB, one to three minutes)"
pip_install --no-deps setuptools==84.2.1
# deepspeed is source; what it would compile is not wanted, and its build looks for PyTorch.
DS_BUILD_OPS=0 pip_install --no-deps --no-build-isolation -r hack/launchers.txt 2> >(grep -v DEPRECATION >&2)
printf '#!%s\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n' "$python" >"$dir/bin/torchrun"
chmod 755 "$dir/bin/torchrun"
finish 'import accelerate, torch.distributed.run'
