#!/usr/bin/env bash
# Packs the content of a folder: hack/tarball.sh FOLDER ARCHIVE.tar.gz. The same names and content give the same bytes: entries are sorted,
# and carry no time, owner, umask or locale of this machine.
set -euo pipefail
export LC_ALL=C # names are sorted by it
if [ $# -ne 2 ]; then
	echo "usage: hack/tarball.sh FOLDER ARCHIVE.tar.gz" >&2
	exit 2
fi
archive=$(realpath "$2")
cd "$1"
tar --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c -- * | gzip -n -9 >"$archive"
