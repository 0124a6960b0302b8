#!/usr/bin/env bash
# go test with binaries that are kept in .cache/test-binaries. They are built before tests that a busy machine would disturb, and linked
# again only after a change. make calls it, and sets the flags of the build cache.
#
#   hack/gotest.sh build PACKAGE...             builds them, with a word now and then
#   hack/gotest.sh run FLAG... -- PACKAGE...    runs them
#
# With RACE=1 they are others, with the race detector. With AGAIN="PACKAGE TEST" that test alone is run, whatever go knows of it already,
# where PACKAGE is among those named; without TEST all of it, and without PACKAGE all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=$PWD/.cache/test-binaries
# The compiler works a quarter less with a lazier garbage collector.
export GOGC=400
# Vet is a separate check; without debug information the linker takes half as long.
gotest=(go test -vet=off '-ldflags=-s -w')
if [ -n "${RACE:-}" ]; then
	export CGO_ENABLED=1 # the detector needs it
	gotest+=(-race)
	kept=$kept/race
fi

# by_folder prints packages with tests, each after the number of the folder for its binary. A binary is named by the last element of the
# package's path, so packages with the same last element get different folders, always the same ones.
by_folder() {
	{
		find . -name '*_test.go' -not -path './.*' -printf '%h\n' | sort -u
		echo
		printf '%s\n' "$@"
	} | awk -F/ '
		$0 == "" { asked = 1; next }
		{ path = $0; sub("^(\\./|holdfast\\.dev/holdfast/)", "", path) }
		!asked { folder[path] = ++seen[$NF]; next }
		path in folder { line[folder[path]] = line[folder[path]] " " $0 }
		END { for (n in line) print n line[n] }' | sort -n
}

# progress reports now and then how many binaries are up to date.
progress() {
	while sleep 15 >/dev/null 2>&1; do # so that a reader of this output need not wait for the last sleep
		echo "  … $(find "$kept" -name '*.test' -newer "$kept/began" | wc -l) of $1 test binaries after $SECONDS s"
	done
}

verb=$1
shift
flags=()
while [ "$verb" = run ] && [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
[ "$verb" = build ] || shift
if [ "$verb" = run ] && [ -n "${AGAIN+set}" ]; then
	read -r package name <<<"$AGAIN" || true
	[ -z "$package" ] || set -- $(printf '%s\n' "$@" | grep -xE "(\./|holdfast\.dev/holdfast/)$package")
	[ $# -gt 0 ] || exit 0
	flags+=(-count=1)
	below=
	for ((i = 0; i < ${#flags[@]} - 1; i++)); do # for a job that runs only some subtests, only those
		[ "${flags[i]}" != -run ] || [[ ${flags[i + 1]} != */* ]] || below=/${flags[i + 1]#*/}
	done
	[ -z "$name" ] || flags+=(-run "^$name\$$below")
fi
lines=$(by_folder "$@")
mkdir -p "$kept"
if [ "$verb" = build ]; then
	flags=(-c)
	touch "$kept/began"
	progress "$(wc -w <<<"$(sed 's/^[0-9]* //' <<<"$lines")")" &
	progress=$!
	trap 'kill $progress 2>/dev/null || true' EXIT
fi
failed=0
while read -ra line; do
	mkdir -p "$kept/${line[0]}"
	"${gotest[@]}" -o "$kept/${line[0]}/" "${line[@]:1}" "${flags[@]}" || failed=1 # flags of the test itself come after the packages
done <<<"$lines"
exit $failed
