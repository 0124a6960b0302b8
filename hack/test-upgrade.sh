#!/usr/bin/env bash
# Runs the version in hack/upgrade-from and today's under one running job, in both directions: its agents with today's coordinator, without
# a cluster, and both versions as a whole on real kubelets (test/upgrade). Builds that version beside this tree, in .cache/upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."
from=$(grep -v '^#' hack/upgrade-from)
old=$PWD/.cache/upgrade/$from
if [ ! -e "$old/.built" ]; then
	echo "upgrade: building $from in $old"
	rm -rf "$old"
	mkdir -p "$old"
	git archive "$from" | tar -x -C "$old"
	make -C "$old" --no-print-directory holdfast-agent holdfast-controller holdfast-scheduler holdfast-node holdfast-nvml
	touch "$old/.built"
fi
echo "upgrade: agents of $from, today's coordinator"
HOLDFAST_AGENT=$old/bin/holdfast-agent hack/gotest.sh run -count=1 -timeout 30m \
	-run '^(TestKillsLoseNothing|TestContainerComesBack|TestKilledRankLeadsToANewGeneration|TestTermination|TestAgentDiesAgainAndAgain|TestAgentDiesDuringTermination|TestStorage.*|TestPipelinesEnd)$' -- ./ckptagent/loop
echo "upgrade: both on real kubelets"
make --no-print-directory static holdfast-nvml
HOLDFAST_UPGRADE_FROM=$old hack/gotest.sh run -v -count=1 -timeout 30m -run "^TestUpgrade$" -- ./test/upgrade
