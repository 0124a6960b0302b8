#!/usr/bin/env bash
# Prepares and builds, side by side: what comes from the network comes while Kubernetes is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

HOLDFAST_PREPARE=check hack/prepare.sh
(HOLDFAST_PREPARE=install hack/prepare.sh && make --no-print-directory holdfast-nvml) & # the latter needs gcc
prepare=$!
trap 'kill $prepare 2>/dev/null || true; wait' EXIT
make --no-print-directory static
wait $prepare
trap - EXIT
