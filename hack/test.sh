#!/usr/bin/env bash
# Everything that checks the project. Leaves out what this machine cannot do, and says so at the end.
#
# Rows of jobs go on side by side. Tests on clusters mostly wait: for leases, leads, back-offs, grace. The two whose jobs train on many
# nodes, the story and the replacements, never meet; the others, which compute little, come beside them, as many at a time as memory and
# cores allow. Checks, unit tests and tests that kill processes mostly compute. They get what processor the clusters leave, and hardly any
# right to it, so that what a cluster promises about time holds as if it were alone. Tests that start many processes of their own and wait
# for them (agents, ranks, launchers) come when the clusters are gone: with hardly any right to the processor they would take an hour.
#
# All binaries, those of tests too, are built before the first cluster starts: beside one, compiling and linking would break its promises.
#
# Every line says which job it is of; the whole of each job is kept in .cache/test/. A test that failed is run again, alone, after all else:
# red again is red, green is listed as FLAKY at the end, and more than three that failed are red without that. What is red is named at the
# end, and so is a test that was skipped and does not stand in hack/skips.txt, or stands there and was not skipped. Ctrl-C ends all of it,
# and so does whatever ends any of these shells. With CI set, a machine that cannot do all of it is refused.
set -euo pipefail
cd "$(dirname "$0")/.."
set -m # a process group for each thing that is begun
started=$SECONDS
began=$(date "+%F %T")
left_out=()
flaky=() # what failed and was green when it ran alone
begun=() # process groups of rows, some of which may be left where the first of them has ended
exec 3>&1
logs=.cache/test
cgroups=(/sys/fs/cgroup/cpu/holdfast-checks-$$ /sys/fs/cgroup/holdfast-checks-$$) # version 1, version 2

say() { printf '\n== [%3ds] %s\n' $((SECONDS - started)) "$*"; }

# job VERB: says what make VERB says, with a name before each line, and at last how it went and what it cost; what runs in a cluster is
# no child of it and not counted. While it lives, running/ has its process group.
job() {
	local name=${1#cluster-} how=ok cost TIMEFORMAT='%R s, %U and %S s of a processor'
	echo $BASHPID >"$logs/running/$name"
	cost=$({ time make --no-print-directory "$1" 2>&1 </dev/null | tee -a "$logs/$name" | words "$name" | sed -u "s/^/$name: /" >&3; } 2>&1) || how=FAILED
	[ $how = FAILED ] || echo "$name${AGAIN+|$AGAIN}" >>"$logs/ok"
	say "$name${AGAIN+ $AGAIN}: $how after $cost"
	rm -f "$logs/running/$name"
}

# words JOB: what is worth saying of it. Unit tests tell of every test, for those that were skipped: only packages that failed are said whole.
words() {
	case $1 in
	unit* | agents | kills | launchers)
		awk '/^=== |^ *--- PASS/ { next }
			/^(ok|FAIL|\?)[ \t]/ { if (/^FAIL/) printf "%s", all; print; fflush(); all = ""; next }
			{ all = all $0 "\n" }
			END { printf "%s", all }'
		;;
	python-unit) sed -u -E '/\.\.\. ok$/d' ;;
	*) sed -u -E '/^=== /d' ;;
	esac
}

# row WIDTH VERB...: so many jobs at a time, and one more once the checks are over and leave their share.
row() {
	set -m # jobs live in groups of their own: what an ended one has begun can be found
	local width=$1 name status
	local -A jobs=()
	shift
	for name; do
		while [ "$(jobs -pr | wc -l)" -ge $((width + $([ -e $logs/checked ] && echo 1 || echo 0))) ]; do sleep 0.5; done
		sweep
		job "$name" &
		jobs[$name]=$!
	done
	for name; do
		wait "${jobs[$name]}" && continue || status=$?
		sweep # what it has left must not write any more
		say "${name#cluster-}: its shell ended with status $status" | tee -a "$logs/${name#cluster-}" # 128 and the signal that ended it
	done
	sweep
}

# sweep ends what jobs have begun that were ended themselves.
sweep() {
	local file group
	for file in "$logs"/running/*; do
		group=$(cat "$file" 2>/dev/null) && [ -n "$group" ] || continue
		kill -0 "$group" 2>/dev/null || { kill -KILL -- "-$group" 2>/dev/null || true; rm -f "$file"; }
	done
}

# rows waits for all that was begun here. A row ends well whatever its jobs do; one that does not was ended, and the rest is not begun.
rows() {
	local how
	while how=0 && { wait -n || how=$?; } && [ $how != 127 ]; do
		[ $how = 0 ] || exit 1
	done
	begun=() # their numbers may be somebody else's from now on
}

# alone VERB...: waits for one thing, and can be ended meanwhile.
alone() {
	"$@" </dev/null &
	wait $!
}

# low moves the caller into a cgroup that gets little where others want the processor. Nice values would not do: to the scheduler each
# session is a party of its own, and each trainer that a test starts is a session. They are what is left where no cgroup can be made.
low() {
	for dir in "${cgroups[@]}"; do
		mkdir "$dir" && [ -e "$dir/cgroup.procs" ] && { echo 512 >"$dir/cpu.shares" || echo 50 >"$dir/cpu.weight"; } && echo 0 >"$dir/cgroup.procs" && return
	done 2>/dev/null
	renice -n 19 $BASHPID >/dev/null
}

# beside are the checks, side by side: some of them use one core, others wait for processes that they have killed.
beside() {
	low
	(row 1 fmt vet lint) &
	(row 1 unit unit-kubernetes python-unit) &
	rows
	touch $logs/checked
}

# has_torch PYTHON: without importing it, which takes seconds.
has_torch() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }

# stop ends all that was begun: rows first, so that they begin nothing more. Clusters end by themselves with who started them; what else
# the checks have started is in their cgroup.
stop() {
	trap '' INT TERM
	local group dir tries
	for group in $(jobs -p) "${begun[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
	wait 2>/dev/null
	for group in $(cat $logs/running/* 2>/dev/null); do
		kill -TERM -- "-$group" 2>/dev/null || true
		for ((tries = 0; tries < 600; tries++)); do
			kill -0 -- "-$group" 2>/dev/null || continue 2
			sleep 0.1
		done
		kill -KILL -- "-$group" 2>/dev/null || true
	done
	for dir in "${cgroups[@]}"; do
		while grep -qs . "$dir/cgroup.procs"; do
			grep -vx 0 "$dir/cgroup.procs" | xargs -r kill -KILL || true # some may have ended since; 0 is one that we cannot see
			sleep 0.1
		done
		rmdir "$dir" || true
	done 2>/dev/null
}

# failed names what failed of jobs that are not ok: JOB|PACKAGE|TEST|what it said last. One that names no test is all of it.
failed() {
	local name
	for name; do
		grep -qxsF "$name" $logs/ok && continue
		{
			awk -f hack/failed.awk "$logs/$name" 2>/dev/null | grep . ||
				echo "||$(grep -so 'its shell ended.*' "$logs/$name" || echo "it named no test")"
		} | sed "s/^/$name|/"
	done
}

# again JOB...: what failed runs once more, alone. A job is ok after all where all that failed of it is green then.
again() {
	local lines name package test words verb
	local -A red=() tried=()
	lines=$(failed "$@")
	[ -n "$lines" ] || return 0
	[ "$(wc -l <<<"$lines")" -le 3 ] || { say "more than three tests failed: that is no flake, none runs again"; return 0; }
	while IFS='|' read -r name package test words; do
		tried[$name]=yes
		case $name in fmt | vet | lint) red[$name]=yes; continue ;; esac # which say the same of the same files
		verb=$name
		[[ " ${names[*]} " != *" cluster-$name "* ]] || verb=cluster-$name
		(AGAIN="$package $test" row 1 "$verb") &
		begun+=($!)
		rows
		if grep -qxF "$name|$package $test" $logs/ok; then flaky+=("$name $package $test: $words"); else red[$name]=yes; fi
	done <<<"$lines"
	for name in "${!tried[@]}"; do [ -n "${red[$name]:-}" ] || echo "$name" >>$logs/ok; done
}

# skipped names all tests that were: package and test.
skipped() {
	local name
	for name; do
		awk '/^ *--- SKIP: / { test[++n] = $3 }
			/^(ok|FAIL)[ \t]/ { sub("^holdfast.dev/holdfast/", "", $2); for (i = 1; i <= n; i++) print $2, test[i]; n = 0 }
			/^[A-Za-z]+[A-Za-z0-9_]* \(.*\)/ { python = substr($2, 2, index($2, ")") - 2) }
			/ \.\.\. skipped / { print "python", python }' "$logs/$name"
	done | sort -u
}

rm -rf $logs && mkdir -p $logs/running
trap 'exit 130' INT TERM
trap stop EXIT

cluster=yes
if [ "$(uname -s)" != Linux ]; then cluster=no; left_out+=("end-to-end tests on real kubelets: they need Linux"); fi
if [ "$(id -u)" != 0 ]; then cluster=no; left_out+=("end-to-end tests on real kubelets: they need root"); fi

if [ $cluster = no ] && [ -n "${CI:-}" ]; then
	printf 'CI is set, and this machine leaves out %s\n' "${left_out[@]}" >&2
	exit 1
fi

read_before=${STATICCHECK_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/staticcheck} # what lint keeps of packages that it has read
[ -d "$read_before" ] || read_before=
if [ $cluster = yes ]; then
	say "machine: check and install what is missing; make build beside it"
	alone hack/ready.sh
fi
if command -v protoc >/dev/null; then
	say "make verify: generated files"
	alone make --no-print-directory verify # alone: it writes Go files
else
	left_out+=("make verify: protoc is not installed")
fi
if [ $cluster = yes ]; then
	say "make test-binaries launchers-venv"
	alone make --no-print-directory -j2 test-binaries launchers-venv
	export KEPT=1
	if [ -z "$read_before" ]; then
		say "make vet lint: they read all of Kubernetes once, for minutes; their turn comes below"
		alone make --no-print-directory -k vet lint || true
	fi
	# A cluster takes up to 4 GiB, the checks as much; and a core, or its tests meet limits that a busy machine breaks.
	width=$(awk -v cores="$(nproc)" '/^MemTotal:/ {n = int(($2 / 1024 / 1024 - 7) / 4); n = n > 3 ? 3 : n; n = n > cores ? cores : n; print n < 1 ? 1 : n}' /proc/meminfo)
	say "the story and other tests on real parts, $width at a time: API server, kubelets, containerd, PyTorch; beside them checks and unit tests"
	beside &
	checks=$!
	begun+=($checks)
	[ "$width" -gt 1 ] || wait $checks
	read -ra names < <(make -s --no-print-directory cluster-tests)
	[ ${#names[@]} -gt 2 ] || { echo "make cluster-tests names too few tests: ${names[*]}" >&2; exit 1; }
	names=("${names[@]/#/cluster-}")
	if [ "$width" -gt 1 ]; then
		(row 1 "${names[0]}" && row 1 "${names[1]}") &
		begun+=($!)
		(row $((width - 1)) "${names[@]:2}") &
		begun+=($!)
	else
		(row 1 "${names[0]}" && row 1 "${names[@]:1}") &
		begun+=($!)
	fi
	rows
	say "agents, ranks and launchers without a cluster"
	(row 1 kills agents launchers) & # two at a time: the checks are over
	begun+=($!)
	rows
	# Green is what every job has said of itself: one that ended without a word is red.
	jobs=(fmt vet lint unit unit-kubernetes python-unit "${names[@]#cluster-}" kills agents launchers)
	again "${jobs[@]}"
	red=()
	for name in "${jobs[@]}"; do
		grep -qxsF "$name" $logs/ok || red+=("$name")
	done
	if [ ${#red[@]} -gt 0 ]; then
		say "FAILED:"
		for name in "${red[@]}"; do
			echo "  $name, all of whose words are in $logs/$name:"
			grep -E '^ *--- FAIL|^FAIL|^panic|\*\*\* |its shell ended' "$logs/$name" | sed 's/^/    /' ||
				echo "    it $([ -e "$logs/running/$name" ] && echo "has not ended" || echo "ended without a word")"
		done
		dmesg --since "$began" 2>/dev/null | grep -F 'Out of memory: Killed' || true # which says so to nobody else
		exit 1
	fi
	# So are tests that said nothing: which ones, and why, stands in one place.
	unlisted=$(diff <(grep -v '^#' hack/skips.txt | cut -d: -f1 | sort -u) <(skipped "${jobs[@]}")) || {
		say "FAILED: hack/skips.txt (<) does not name the tests that were skipped (>):"
		grep '^[<>]' <<<"$unlisted"
		exit 1
	}
else
	say "make check: format, vet, lint, unit tests"
	alone make --no-print-directory check
	python=/opt/holdfast-python/venv/bin/python3 # as in the Makefile; nothing was installed here
	if [ "$(uname -s)" != Linux ]; then
		left_out+=("make kills: it needs Linux")
	elif ! command -v python3 >/dev/null; then
		left_out+=("make kills: python3 is not installed")
	else
		say "make launchers: accelerate and deepspeed, without a cluster"
		alone make --no-print-directory launchers
		say "make kills: agents and ranks of real trainers, without a cluster"
		alone make --no-print-directory kills
		has_torch $python || left_out+=("kills of trainers with PyTorch: $python has none")
	fi
	[ -x $python ] || python=python3
	has_torch $python || left_out+=("Python tests that need PyTorch: $python has none")
fi

say "done"
[ ${#flaky[@]} -eq 0 ] || printf 'FLAKY %s\n' "${flaky[@]}"
if [ ${#left_out[@]} -gt 0 ]; then
	printf '\n************************************************************\nLEFT OUT on this machine:\n'
	printf '  - %s\n' "${left_out[@]}"
	printf '************************************************************\n'
fi
