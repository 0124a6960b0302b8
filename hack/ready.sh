#!/usr/bin/env bash
# Prepares and builds in parallel: downloads run while Kubernetes is compiled. If one of the two fails, or this script is ended, both end,
# with all their processes.
set -euo pipefail
cd "$(dirname "$0")/.."

# stop sends signals to what is left and waits until it has ended. One signal is not enough: apt-get rightly ignores it while it unpacks,
# and the script that called it would then continue.
stop() {
	trap '' INT TERM
	local group tries
	for group in $(jobs -p); do # bash's list: a process may be started but not yet in ours when this is interrupted
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
