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
	# One package at a time: each may start a cluster, whose promises about time two at once would not keep on two cores.
	go test -p 1 -count=1 -timeout 30m ./test/...
fi

say "done"
if [ ${#left_out[@]} -gt 0 ]; then
	printf '\n************************************************************\nLEFT OUT on this machine:\n'
	printf '  - %s\n' "${left_out[@]}"
	printf '************************************************************\n'
fi
