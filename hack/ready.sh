#!/usr/bin/env bash
# Prepares and builds, side by side: what comes from the network comes while the compiler is at work.
set -euo pipefail
cd "$(dirname "$0")/.."

HOLDFAST_PREPARE=check hack/prepare.sh
HOLDFAST_PREPARE=install hack/prepare.sh &
prepare=$!
go list -deps ./cmd/... >/dev/null & # downloads their modules
modules=$!
trap 'kill $prepare $modules 2>/dev/null || true; wait' EXIT
hack/gobuild.sh std # needs no module
wait $modules || true # what was missing the build says again
make --no-print-directory static
wait $prepare
trap - EXIT
make --no-print-directory holdfast-nvml # needs gcc
