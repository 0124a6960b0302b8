#!/usr/bin/env bash
# Prepares and builds, side by side: what comes from the network comes while Kubernetes is compiled. Where one of them fails, or
# this is ended, so are both, with all that they have started.
set -euo pipefail
cd "$(dirname "$0")/.."
started=()

# stop asks what is left to end, and waits until it has. Asking once would not do: apt-get does not listen while it unpacks, which is
# for the best, and the script that called it would go on with what comes next.
stop() {
	trap '' INT TERM
	local group tries
	for group in "${started[@]}"; do
		for ((tries = 0; tries < 300; tries++)); do
			kill -INT -- "-$group" 2>/dev/null || continue 2
			sleep 0.2
		done
		kill -KILL -- "-$group" 2>/dev/null || true
	done
}
trap stop EXIT
trap 'exit 130' INT TERM

HOLDFAST_PREPARE=check hack/prepare.sh
set -m # a process group for each of the two
(HOLDFAST_PREPARE=install hack/prepare.sh && make --no-print-directory holdfast-nvml) </dev/null & # the latter needs gcc
started+=($!)
make --no-print-directory static </dev/null &
started+=($!)
for ((i = ${#started[@]} - 1; i >= 0; i--)); do wait "${started[i]}"; done
trap - EXIT
