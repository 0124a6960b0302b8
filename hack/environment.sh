# Sourced by dlrover.sh and launchers.sh: a virtual environment /opt/holdfast-NAME beside that of python.sh. $name is set before, and $wanted, which
# says what is to be installed, before it is begun.
#
# The marker .ready is written last and says what was installed: a run that was killed is done again, one that is whole costs nothing.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."

dir=/opt/holdfast-$name
base=/opt/holdfast-python
marker=$dir/.ready
python=$dir/bin/python3

say() { echo "$name: $*"; }
die() { echo "$name: $*" >&2; exit 1; }

[ -e "$base/.ready" ] || die "$base is not ready: run hack/python.sh first"

is_ready() { [ "$(cat "$marker" 2>/dev/null)" = "$wanted" ]; }

end_if_ready() {
	if is_ready; then
		say "$dir is ready"
		exit 0
	fi
}

# One run at a time makes it anew, unless another one just has.
begin() {
	end_if_ready
	exec 9>"/run/lock/holdfast-$name"
	flock 9
	end_if_ready
	rm -rf "$dir"
	"$base/base/bin/python3" -m venv "$dir"
}

pip_install() { "$python" -m pip install -q --no-cache-dir --disable-pip-version-check --progress-bar off "$@"; }

# What python runs must work, then the environment is ready.
finish() {
	"$python" -W ignore -c "$1" || die "what is in $dir does not import: remove it and try again"
	chmod -R a+rX "$dir"
	echo "$wanted" >"$marker.new"
	mv "$marker.new" "$marker"
	say "$dir is ready"
}
