#!/usr/bin/env bash
# Prepares /opt/holdfast-dlrover, a virtual environment with DLRover and the PyTorch that it starts with (hack/dlrover.txt; grpcio and
# protobuf are not among what DLRover asks for, and it does not start without them). make bench-checkpoint alone needs it.
#
# The marker .ready is written last and says what was installed: a run that was killed is done again, one that is whole costs nothing.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

dir=/opt/holdfast-dlrover
base=/opt/holdfast-python
marker=$dir/.ready
python=$dir/bin/python3

say() { echo "dlrover: $*"; }
die() { echo "dlrover: $*" >&2; exit 1; }

[ -e "$base/.ready" ] || die "$base is not ready: run hack/python.sh first"
wanted=$(sha256sum <hack/dlrover.txt)
exec 9>/run/lock/holdfast-dlrover
flock 9
[ "$(cat "$marker" 2>/dev/null)" != "$wanted" ] || { say "$dir is ready"; exit 0; }
rm -rf "$dir"
"$base/base/bin/python3" -m venv "$dir"
say "installing DLRover and its PyTorch from PyPI (about 3 GB, 6 GB in $dir, some minutes)"
"$python" -m pip install -q --no-cache-dir --disable-pip-version-check --progress-bar off -r hack/dlrover.txt
"$python" -W ignore -c 'import dlrover.trainer.torch.flash_checkpoint.ddp' || die "what is in $dir does not import: remove it and try again"
chmod -R a+rX "$dir"
echo "$wanted" >"$marker.new"
mv "$marker.new" "$marker"
say "$dir is ready"
