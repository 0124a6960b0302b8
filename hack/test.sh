#!/usr/bin/env bash
# Everything that checks the project. Leaves out what this machine cannot do, and says so at the end.
#
# Tests on clusters mostly wait: for leases, leads, back-offs, grace. Checks and tests that kill processes mostly compute. So both go
# on at once, the latter with less right to the processor, so that what a cluster promises about time holds as if it were alone.
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
if command -v protoc >/dev/null; then
	say "make verify: generated files"
	make --no-print-directory verify # alone: it writes Go files
else
	left_out+=("make verify: protoc is not installed")
fi
if [ $cluster = yes ]; then
	say "make build"
	make --no-print-directory build
	say "make check kills: format, vet, lint, unit tests; kills of agents and ranks"
	make --no-print-directory check kills
	say "tests on real parts: API server, kubelets, containerd, PyTorch"
	make --no-print-directory clusters
else
	say "make check: format, vet, lint, unit tests"
	make --no-print-directory check
fi

say "done"
if [ ${#left_out[@]} -gt 0 ]; then
	printf '\n************************************************************\nLEFT OUT on this machine:\n'
	printf '  - %s\n' "${left_out[@]}"
	printf '************************************************************\n'
fi
