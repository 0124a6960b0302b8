package hang

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

const (
	// betweenLooks is after the first look at a silence and before the third.
	betweenLooks = 19 * time.Second
	// odd is the rank that others wait for in most faults of lesson.py.
	odd = 3
)

// losses are silences during which a process of Holdfast is killed. They are played one after another, because a leader leads all jobs.
func losses() []silence {
	timeout := map[string]string{v1alpha1.AnnotationHangTimeout: "2m"}
	unexplained := v1alpha1.ReasonUnexplained
	return []silence{
		{
			name: "agent-killed", script: "deaf",
			what:  "one rank is in a call that takes no signal; the agent of its pod is killed between looks",
			taken: []string{v1alpha1.CauseHang, unexplained}, says: "rank 3 ", within: 2 * inTime,
			plays: without(agentOf(odd), betweenLooks, restarts),
		},
		{
			name: "other-agent-killed", script: "deaf",
			what:  "one rank is in a call that takes no signal; the agent of the other pod is killed between looks",
			taken: []string{v1alpha1.CauseHang, unexplained}, says: "rank 3 ", within: 2 * inTime,
			plays: without(agentOf(0), betweenLooks, restarts),
		},
		{
			name: "evaluates-without-agent", script: "long-evaluation",
			what:  "one rank evaluates alone; the agent of its pod is killed between looks",
			taken: []string{busy, unexplained}, within: 2 * inTime, plays: without(agentOf(0), betweenLooks, endsByItself),
		},
		{
			name: "leader-killed", script: "deaf",
			what:  "one rank is in a call that takes no signal; the leading controller is killed between looks",
			taken: []string{v1alpha1.CauseHang, unexplained}, says: "rank 3 ", within: 4 * inTime,
			plays: without(leader, betweenLooks, restarts),
		},
		{
			name: "leader-killed-later", script: "sleeps", settings: timeout,
			what:  "one rank sleeps for ever; `hang-timeout: 2m`; the leading controller is killed after the verdict",
			taken: []string{outside, unexplained, v1alpha1.CauseHangTimeout}, says: "rank 3 ", plays: afterVerdict(leader, restarts),
		},
		{
			name: "evaluates-without-leader", script: "long-evaluation",
			what:  "one rank evaluates alone for three minutes; the leading controller is killed between looks",
			taken: []string{busy, unexplained}, within: 4 * inTime, plays: without(leader, betweenLooks, endsByItself),
		},
	}
}

// victim kills a process of Holdfast.
type victim func(context.Context, *testing.T, *job)

// agentOf is the agent of the pod with that rank.
func agentOf(rank int) victim {
	return func(ctx context.Context, t *testing.T, j *job) {
		if _, err := j.Kill(ctx, namespace, j.shape.Assignments[rank/perPod].Pod, container, harness.Agent); err != nil {
			t.Fatal(err)
		}
	}
}

// leader is the controller that leads; another replica leads once its lease has expired.
func leader(ctx context.Context, t *testing.T, j *job) {
	p, err := j.Leader(ctx, "holdfast-controller")
	if err != nil || p == nil {
		t.Fatalf("no controller leads: %v", err)
	}
	if _, err := j.Kill(ctx, v1alpha1.Namespace, p.Name, "controller", harness.Numbered(1)); err != nil {
		t.Fatal(err)
	}
}

// without kills a process of Holdfast so long after the last step, and plays the rest.
func without(kill victim, after time.Duration, rest func(context.Context, *testing.T, *job)) func(context.Context, *testing.T, *job) {
	return func(ctx context.Context, t *testing.T, j *job) {
		j.lasts(ctx, t, after)
		kill(ctx, t, j)
		rest(ctx, t, j)
	}
}

// afterVerdict kills a process of Holdfast once the verdict is reported, and plays the rest.
func afterVerdict(kill victim, rest func(context.Context, *testing.T, *job)) func(context.Context, *testing.T, *job) {
	return func(ctx context.Context, t *testing.T, j *job) {
		j.verdict(ctx, t)
		kill(ctx, t, j)
		rest(ctx, t, j)
	}
}

// narrow: the network between the pods passes 10 kbit a second. The gang is slow, or its verdict is of all ranks: none is at fault.
func narrow(ctx context.Context, t *testing.T, j *job) {
	j.steps(ctx, t, 1, 25)
	peer, p := j.address(ctx, t, 1), j.rank(ctx, t, 0)
	enter := func(args ...string) {
		args = append([]string{"-t", fmt.Sprint(p.Host), "-n", "tc"}, args...)
		if out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("nsenter %v: %v: %s", args, err, out)
		}
	}
	j.quiet = time.Now()
	for _, line := range []string{
		"qdisc add dev eth0 root handle 1: htb default 1",
		"class add dev eth0 parent 1: classid 1:1 htb rate 1gbit",
		"class add dev eth0 parent 1: classid 1:2 htb rate 1gbit",
		"qdisc add dev eth0 parent 1:2 tbf rate 10kbit burst 1600 latency 60s",
		"filter add dev eth0 parent 1: protocol ip u32 match ip dst " + peer + " flowid 1:2",
	} {
		enter(strings.Fields(line)...)
	}
	j.lasts(ctx, t, 2*long)
	enter("qdisc", "del", "dev", "eth0", "root")
	if i := slices.IndexFunc(j.row.Seen, func(s seen) bool { return strings.Contains(s.Text, " on n") }); i >= 0 {
		t.Errorf("a rank is named: %+v", j.row.Seen[i])
	}
	goesOn(ctx, t, j, 0)
}

// unanswered: a file system does not answer, and answers after the verdict.
func unanswered(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.lasts(ctx, t, long)
	j.mute.answer(j.name)
	j.finishes(ctx, t, v1alpha1.ReasonFinished, 0)
}
