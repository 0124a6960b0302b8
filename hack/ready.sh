#!/usr/bin/env bash
# Prepares and builds, side by side: what comes from the network comes while Kubernetes is compiled. Where one of them fails, or
# this is ended, so are both, with all that they have started.
set -euo pipefail
cd "$(dirname "$0")/.."

# stop asks what is left to end, and waits until it has. Asking once would not do: apt-get does not listen while it unpacks, which is
# for the best, and the script that called it would go on with what comes next.
stop() {
	trap '' INT TERM
	local group tries
	for group in $(jobs -p); do # bash's own list: between a start and taking it down in ours this may be interrupted
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
prepared=$!
make --no-print-directory static </dev/null &
wait $!
wait "$prepared"
trap - EXIT
