#!/usr/bin/env bash
# Everything that checks the project, cheapest first. Leaves out what this machine cannot do, and says so at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
left_out=()

say() { printf '\n== [%3ds] %s\n' $((SECONDS - started)) "$*"; }

cluster=yes
if [ "$(uname -s)" != Linux ]; then cluster=no; left_out+=("end-to-end tests on real kubelets: they need Linux"); fi
if [ "$(id -u)" != 0 ]; then cluster=no; left_out+=("end-to-end tests on real kubelets: they need root"); fi

if [ $cluster = yes ]; then
	say "machine: check and install what is missing"
	hack/prepare.sh
fi
say "make check: format, vet, lint, unit tests"
make --no-print-directory check
if command -v protoc >/dev/null; then
	say "make verify: generated files"
	make --no-print-directory verify
else
	left_out+=("make verify: protoc is not installed")
fi
if [ $cluster = yes ]; then
	say "make build"
	make --no-print-directory build
	say "tests on real parts: API server, kubelets, containerd, PyTorch"
	# Two packages at a time, the longest first: they mostly wait, and clusters stand beside one another. Three would not keep promises about time on two cores.
	longest=$(printf './test/%s\n' e2e replace checkpoint devcluster)
	others=$(go list ./test/... | sed "s|^$(go list -m)|.|" | grep -vxF "$longest")
	go test -p 2 -count=1 -timeout 30m $longest $others
fi

say "done"
if [ ${#left_out[@]} -gt 0 ]; then
	printf '\n************************************************************\nLEFT OUT on this machine:\n'
	printf '  - %s\n' "${left_out[@]}"
	printf '************************************************************\n'
fi
