#!/usr/bin/env bash
# go build with progress output: the first time it compiles Kubernetes, which takes minutes.
set -euo pipefail
# The compiler works a quarter less with a lazier garbage collector.
export GOGC=400
compiled=0 said=0 total=
# of prints the number of packages; cached ones are not compiled.
of() { go list -deps $(printf '%s\n' "$@" | grep -xE '\./[^= ]*|tool') 2>/dev/null | wc -l || true; }
go build -v "$@" 2>&1 | while IFS= read -r line; do
	case $line in
	*[[:space:]]*) printf '%s\n' "$line" ;; # messages of the compiler
	*)
		compiled=$((compiled + 1))
		if [ $((SECONDS - said)) -ge 15 ]; then
			said=$SECONDS
			total=${total:-$(of "$@")}
			echo "  … $compiled of at most $total packages compiled after $SECONDS s, now $line"
		fi
		;;
	esac
done
