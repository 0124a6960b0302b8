package replace

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth/budget"
	"holdfast.dev/holdfast/test/harness"
)

// testCut: all packets to and from a node are dropped. The node is given up within the promised time, the pod's object is deleted although
// the node cannot confirm that, and training goes on elsewhere. When the node is reachable again, its kubelet finds the pod deleted and
// ends the containers, and the node is used again.
func testCut(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const (
		job      = "cut"
		promised = 20 * time.Second
	)
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause, annotations: inStorage(interval)})
	w.stored(ctx, t, job)
	gone := before.Assignments[1]
	node := w.Node(gone.Node)
	stored := w.nextStored(ctx, t, job, w.record(ctx, t, job).Durable.Step)
	if err := node.Cut(ctx); err != nil {
		t.Fatal(err)
	}
	began, given := time.Now(), v1alpha1.NodeOutage{}
	w.until(ctx, t, node.Name+" is given up", func(ctx context.Context) (bool, string) {
		o, err := w.outage(ctx, node.Name)
		given = o
		return err == nil && o.Decision == v1alpha1.DecisionEvict && o.Dead, fmt.Sprintf("%+v %v", o, err)
	})
	took := time.Since(began)
	t.Logf("%s is cut off: given up after %.1f s: %s", node.Name, took.Seconds(), given.Message)
	if took > 3*promised { // 12 s of silence at most, plus time for other work on a busy machine
		t.Errorf("a node that is cut off was given up after %s", took)
	}
	checkSilences(t, given.Message)
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 1)
	w.lost(ctx, t, job, node.Name, stored)
	w.left(ctx, t, job, 2) // the pod's object is deleted, although its node could not confirm its end
	if alive, err := harness.Runs(id(gone)); err != nil || !alive {
		t.Errorf("the container was to go on where no client reaches it: %v, %v", alive, err)
	}
	if err := node.Mend(ctx); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "the old container ends", func(context.Context) (bool, string) {
		alive, err := harness.Runs(id(gone))
		return err == nil && !alive, fmt.Sprint(alive, err)
	})
	w.well(ctx, t, node.Name)
	w.trains(ctx, t, job, 20)
	w.untouched(ctx, t, job, after) // the returning node changed nothing
	w.end(ctx, t, job)
}

// silences matches the durations of silence in the decision that a node is dead.
var silences = regexp.MustCompile(`^the node's lease was not renewed for (\S+) and no agent on it reported for (\S+)$`)

// checkSilences checks that a node was given up because neither its lease was renewed nor an agent on it reported, each for as long as
// promised, and sooner than a node without any report. The durations come from the leader's clock, so the machine's load does not matter.
func checkSilences(t *testing.T, message string) {
	t.Helper()
	found := silences.FindStringSubmatch(message)
	if found == nil {
		t.Fatalf("a node that is cut off was given up because %q", message)
	}
	lease, err1 := time.ParseDuration(found[1])
	agents, err2 := time.ParseDuration(found[2])
	if d := budget.Defaults(); err1 != nil || err2 != nil || lease < d.LeaseTimeout || lease >= d.LeaseAloneTimeout ||
		agents < d.AgentTimeout {
		t.Errorf("a node that is cut off was given up because %q", message)
	}
}

// id returns the container's id on its node.
func id(s assignment) string {
	_, id, _ := strings.Cut(s.Container, "://")
	return id
}

// testTwoLost: two of three pods lose their nodes at once. With one free node neither pod is placed. With two free nodes both are, and
// training resumes from the last stored step or a newer one.
func testTwoLost(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "two-lost"
	before := w.start(ctx, t, training{name: job, nodes: nodes, members: 3, pause: pause, annotations: inStorage(interval)})
	w.stored(ctx, t, job)
	spares := unused(nodes, before)
	w.run(ctx, t, "cordon", spares[0])
	stored, began := w.nextStored(ctx, t, job, w.record(ctx, t, job).Durable.Step), time.Now()
	goOn := w.stop(ctx, t, before.Assignments[0].Pod) // so that both are to be replaced before the first is released
	sick := []string{before.Assignments[1].Node, before.Assignments[2].Node}
	w.sicken(ctx, t, sick...)
	w.pending(ctx, t, job, 2)
	goOn()
	stopped := time.Since(began)
	w.until(ctx, t, "one place is found for two pods", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil || g.Status.Placement == nil {
			return false, fmt.Sprint(err)
		}
		p := g.Status.Placement
		return !p.Placed && p.Wanted == 2 && p.Fits == 1, fmt.Sprintf("%+v", *p)
	})
	members, _, err := w.pods(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range members {
		if p.Spec.NodeName != "" && p.Name != before.Assignments[0].Pod {
			t.Errorf("pod %s is on %s, alone", p.Name, p.Spec.NodeName)
		}
	}
	w.run(ctx, t, "uncordon", spares[0])
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 1, 2)
	r := w.last(ctx, t, job)
	t.Logf("two lost: step %d was stored, restored step %d, %d steps again", stored, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
	// As many steps as after one lost pod, plus those done while an agent was stopped and nothing was stored.
	if most := mostApart + int64(stopped/pause); r.RestoreStep < stored || ptr.Deref(r.StepsRecomputed, -1) > most {
		t.Errorf("step %d was stored, restored step %d; %d steps were done again, at most %d were to be", stored, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1), most)
	}
	w.left(ctx, t, job, 3)
	w.heal(ctx, t, sick...)
	w.end(ctx, t, job)
}

// testNodeGone: the Node object of a pod's node is deleted. Its kubelet can no longer be reached, so the pod is replaced at once.
func testNodeGone(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "node-gone"
	before := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	gone := before.Assignments[1]
	node := &corev1.Node{}
	if err := w.Client().Get(ctx, client.ObjectKey{Name: gone.Node}, node); err != nil {
		t.Fatal(err)
	}
	if err := w.Client().Delete(ctx, node); err != nil {
		t.Fatal(err)
	}
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 1)
	if r := w.last(ctx, t, job); len(r.Replaced) != 1 || r.Replaced[0].Cause != v1alpha1.CauseNodeGone || !r.Replaced[0].Dead {
		t.Errorf("replaced were %+v", r.Replaced)
	}
	w.left(ctx, t, job, 2)
	if err := w.Node(gone.Node).KillKubelet(); err != nil { // a kubelet registers its node only when it starts
		t.Fatal(err)
	}
	w.until(ctx, t, "the node is back", func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		err := w.Client().Get(ctx, client.ObjectKey{Name: gone.Node}, n)
		return err == nil && n.UID != node.UID, fmt.Sprint(err)
	})
	w.well(ctx, t, gone.Node)
	w.untouched(ctx, t, job, after)
	w.end(ctx, t, job)
}

// leader waits until an existing pod holds the lease, and returns node and pod.
func (w *world) leader(ctx context.Context, t *testing.T, lease string) (node, pod string) {
	t.Helper()
	w.until(ctx, t, "a pod holds lease "+lease, func(ctx context.Context) (bool, string) {
		p, err := w.Leader(ctx, lease)
		if err != nil || p == nil {
			return false, fmt.Sprintf("none does, %v", err)
		}
		node, pod = p.Spec.NodeName, p.Name
		return true, ""
	})
	return node, pod
}

// testLeaders: a node with a pod of the job and the leading controller loses power; later a node with another pod and the acting scheduler.
// Their replicas take over, and the job recovers both times.
func testLeaders(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "leaders"
	w.run(ctx, t, "cordon", nodes[control])
	s := w.start(ctx, t, training{name: job, nodes: nodes, pause: pause})
	w.run(ctx, t, "uncordon", nodes[control])
	for _, lease := range []string{"holdfast-controller", "holdfast-scheduler"} {
		s = w.leaderLost(ctx, t, job, lease, s)
	}
	w.end(ctx, t, job)
}

func (w *world) leaderLost(ctx context.Context, t *testing.T, job, lease string, before shape) shape {
	t.Helper()
	node, leader := w.leader(ctx, t, lease)
	slot := slices.IndexFunc(before.Assignments, func(s assignment) bool { return s.Node == node })
	if slot < 0 {
		t.Fatalf("%s of %s leads on %s, where no pod of the job is: %+v", leader, lease, node, before.Assignments)
	}
	began := time.Now()
	if err := w.Node(node).PowerOff(); err != nil {
		t.Fatal(err)
	}
	after := w.runs(ctx, t, job, before.Generation+1)
	w.Say("  %s, where %s led, was switched off: trains again after %.0f s", node, leader, time.Since(began).Seconds())
	w.replacedOnce(ctx, t, job, before, after, slot)
	if _, now := w.leader(ctx, t, lease); now == leader {
		t.Errorf("%s is held by %s, whose node is off", lease, now)
	}
	if err := w.Node(node).PowerOn(); err != nil {
		t.Fatal(err)
	}
	w.well(ctx, t, node)
	if err := w.Serves(ctx); err != nil {
		t.Fatal(err)
	}
	return after
}

// testLeaderDrained: the node of the leading controller is drained, with a pod of a job without backoffLimit. Then the leader is killed, so
// that no replica can lead before its lease expires, and at that moment a pod of the job is deleted. Each pod waits until a leader has
// released it from its Job. At last the Job itself is deleted: its pods need not wait, and its Gang is gone before a replica leads.
func testLeaderDrained(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const job = "led"
	w.run(ctx, t, "cordon", nodes[control])
	before := w.start(ctx, t, training{name: job, nodes: nodes, grace: enough, pause: pause, annotations: inStorage(interval)})
	w.stored(ctx, t, job)
	w.run(ctx, t, "uncordon", nodes[control])
	node, leader := w.leader(ctx, t, "holdfast-controller")
	slot := slices.IndexFunc(before.Assignments, func(s assignment) bool { return s.Node == node })
	w.run(ctx, t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")
	s := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, slot)
	w.drained(ctx, t, job, "the node of "+leader+", which led, was drained")
	w.run(ctx, t, "uncordon", node)
	if err := w.Serves(ctx); err != nil {
		t.Fatal(err)
	}

	before = s
	w.killLeader(ctx, t)
	w.deletePod(ctx, t, before.Assignments[slot].Pod)
	s = w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, s, slot)
	r, run := w.last(ctx, t, job), w.record(ctx, t, job)
	w.Say("  leaderless: %s, restored step %d, %d steps again", r.Cause.Code, r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
	if r.Cause.Code != v1alpha1.CausePodReplaced || run.Restarts != 0 {
		t.Errorf("what had to go counts as a failure: %+v, %d restarts", r.Cause, run.Restarts)
	}

	w.killLeader(ctx, t)
	began := time.Now()
	w.end(ctx, t, job)
	took := time.Since(began)
	w.Say("  leaderless: the pods of a Job that was deleted went after %.0f s", took.Seconds())
	if took > (enough-10)*time.Second {
		t.Errorf("they had a grace of %d s, and took %s: they were not ordered to exit", enough, took)
	}
}

// killLeader kills the leading controller. No replica leads before the lease of the killed one expires.
func (w *world) killLeader(ctx context.Context, t *testing.T) {
	t.Helper()
	_, leader := w.leader(ctx, t, "holdfast-controller")
	pid, err := w.HostPID(ctx, v1alpha1.Namespace, leader, "controller", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// testAway: the API server is unavailable for a minute, longer than any lease, during a replacement. Another job trains meanwhile. The
// replacement ends some time after the API server is back, because clients retry at growing intervals.
func testAway(ctx context.Context, t *testing.T, w *world, nodes []string) {
	const (
		job, other = "away", "beside"
		away       = time.Minute
	)
	before := w.start(ctx, t, training{name: job, nodes: nodes[:3], pause: pause})
	beside := w.start(ctx, t, training{name: other, nodes: nodes[3:], pause: pause})
	spare := unused(nodes[:3], before)[0]
	w.run(ctx, t, "cordon", spare)
	sick := before.Assignments[0].Node
	w.sicken(ctx, t, sick)
	w.until(ctx, t, "the new pod waits for a node", func(ctx context.Context) (bool, string) {
		members, _, err := w.pods(ctx, job)
		return err == nil && len(members) == 2 &&
				slices.ContainsFunc(members, func(p corev1.Pod) bool { return p.Spec.NodeName == "" }), fmt.Sprint(
				err,
			)
	})
	step := w.record(ctx, t, other).Progress.Step
	if err := w.StopProgram("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(away): // the test is about an outage of this length
	}
	if err := w.StartProgram("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "the API server is back", func(ctx context.Context) (bool, string) {
		_, err := w.gang(ctx, job)
		return err == nil, fmt.Sprint(err)
	})
	w.onNode(ctx, t, spare, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	after := w.runs(ctx, t, job, before.Generation+1)
	w.replacedOnce(ctx, t, job, before, after, 0)
	w.until(ctx, t, "the other job's steps are reported", func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, other)
		if err != nil {
			return false, err.Error()
		}
		now := g.Status.Run.Progress.Step
		return now >= step+int64(away/pause/3), fmt.Sprintf("step %d after %d", now, step)
	})
	w.untouched(ctx, t, other, beside)
	w.left(ctx, t, job, 2)
	w.heal(ctx, t, sick)
	w.end(ctx, t, job)
	w.end(ctx, t, other)
}
