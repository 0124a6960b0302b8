#!/usr/bin/env bash
# Fuzzes each target for a while (FUZZTIME, 20 s each) and keeps its findings: an input that breaks a promise is in testdata/fuzz of its
# package, to be committed with the fix. KEEP=1 also keeps some inputs that reached new code, the shortest KEEP_MOST (24) of each target.
#
#   hack/fuzz.sh [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
export GOGC=400
failed=()
while IFS=: read -r file target; do
	package=$(dirname "$file")
	[ $# = 0 ] || [[ " $* " == *" $package "* ]] || continue
	echo "fuzz: $package $target"
	go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" -fuzzminimizetime 2s "$package" | sed -n '/^fuzz: elapsed/!p; /^fuzz: elapsed/h; ${g;p}' || failed+=("$package $target")
	if [ -n "${KEEP:-}" ]; then
		found=$(go env GOCACHE)/fuzz/$(go list "$package")/$target kept=$package/testdata/fuzz/$target
		mkdir -p "$kept"
		find "$found" -type f -size -2k -printf '%s %f\n' 2>/dev/null | sort -n | head -n "${KEEP_MOST:-24}" | while read -r _ name; do cp -n "$found/$name" "$kept/"; done
		rmdir "$kept" 2>/dev/null || true
	fi
done < <(grep -ro --include='*_test.go' --exclude-dir='.?*' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func /:/' | sort)
[ ${#failed[@]} = 0 ] || { printf 'fuzz: FAILED: %s\n' "${failed[@]}"; exit 1; }
