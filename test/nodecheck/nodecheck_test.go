package nodecheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

// TestNodeCheck plays all cases on one cluster, one after another: beside others, two cores would be too busy for the times of trials.
func TestNodeCheck(t *testing.T) {
	w := start(t.Context(), t)
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { w.play(t.Context(), t, c) })
	}
}

const (
	passed       = "Passed"
	replacedOnce = "Replaced"
	inconclusive = "Inconclusive"
	withdrawn    = "Withdrawn"
	noHealthy    = "NoHealthyNode"
)

func cases() []checked {
	return []checked{
		{
			name: "healthy", what: "no fault", result: passed,
		},
		{
			name: "wrong", what: "one node multiplies wrongly", fault: "wrong", where: "node",
			result: replacedOnce, replaced: 1, says: "of a product is",
		},
		{
			name: "cold", what: "one pod imports for 35 s the first time", fault: "cold", where: "slot", result: passed,
		},
		{
			name: "sleeps", what: "a multiplication does not end on one node", fault: "sleeps", where: "node",
			result: replacedOnce, replaced: 1, says: "part matmul did not end within 27 s",
		},
		{
			name: "stopped", what: "the process of the check is stopped on one node", fault: "stopped", where: "node",
			result: replacedOnce, replaced: 1, says: "part matmul did not end within 30s, and the process had to be killed",
		},
		{
			name: "cut", what: "the network between one pod and the others loses all packets", meanwhile: cut("-A", 0, 2),
			result: replacedOnce, replaced: 1, says: "failed with pod cut-",
		},
		{
			name: "pair-cut", what: "the network between two pods loses all packets", meanwhile: cut("-A", 0), mend: cut("-D", 0),
			result: passed, says: "and both passed with others: the path between them",
		},
		{
			name: "narrow", what: "the network of one pod passes 1 Mbit/s", meanwhile: narrow,
			result: replacedOnce, replaced: 1, says: "failed with pod narrow-",
		},
		{
			name: "slow", what: "one pod of four multiplies slowly", pods: 4, fault: "slow", where: "slot",
			result: passed, says: "is slow alone: it ran at ",
		},
		{
			name: "agent-killed", what: "the agent of one pod is killed during its trial", meanwhile: killAgent, result: passed,
		},
		{
			name: "leader-killed", what: "one node multiplies wrongly; the leading controller is killed during the first trials",
			fault: "wrong", where: "node", meanwhile: killLeader, result: replacedOnce, replaced: 1, says: "of a product is",
		},
		{
			name: "no-spare", what: "one node multiplies wrongly, there is no other one, and it is repaired", fault: "wrong", where: "node",
			nodes: 1, healed: true, result: replacedOnce, replaced: 1, says: "of a product is",
		},
		{
			name: "accuses-all", what: "all pods answer that they multiply wrongly", fault: "wrong", where: "all",
			result: inconclusive, says: "the cause is not one node",
		},
		{
			name: "follows", what: "the pod of one slot multiplies wrongly, on whatever node, and the job then wants no check", fault: "wrong",
			where: "slot", mend: overrule, result: withdrawn, says: "of a product is", replaced: 3,
		},
	}
}

// play plays a case until the job trains.
func (w *world) play(ctx context.Context, t *testing.T, c checked) {
	j := w.begin(ctx, t, c)
	if c.meanwhile != nil {
		c.meanwhile(ctx, t, j)
	}
	j.write(t, "go")
	if c.healed {
		j.heals(ctx, t)
	}
	check := j.trains(ctx, t)
	if check.Result != c.result || int(check.Replaced) != c.replaced || !strings.Contains(check.Message, c.says) {
		t.Errorf("%+v; want %s, %d replaced, %q", check, c.result, c.replaced, c.says)
	}
	j.keepsOthers(ctx, t, check)
	j.excluded(ctx, t, check)
	j.note(t, check)
}

// heals waits until the replaced pod finds no node, and repairs the only one as an administrator does.
func (j *job) heals(ctx context.Context, t *testing.T) {
	t.Helper()
	var node string
	j.until(ctx, t, "the named pod has no place", func(ctx context.Context, g *v1alpha1.Gang) (bool, string) {
		raw, err := os.ReadFile(filepath.Join(j.folder, "node"))
		node = string(raw)
		p := g.Status.Placement
		return err == nil && p != nil && !p.Placed && p.Wanted > p.Fits, fmt.Sprintf("%+v %v", p, err)
	})
	if r := j.gang.Status.Run; r.Generation > 0 || r.NodeCheck.EndedAt != nil {
		t.Errorf("the gang runs without the pod: %+v", r.NodeCheck)
	}
	j.write(t, "healed")
	if out, err := j.Holdfast(ctx, "evict", "node/"+node, "--undo"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// keepsOthers checks that the pods of the other slots are those that began, and that no rank ran in one that is gone.
func (j *job) keepsOthers(ctx context.Context, t *testing.T, check *v1alpha1.NodeCheck) {
	t.Helper()
	now, err := j.Shape(ctx, j.gang)
	if err != nil {
		t.Fatal(err)
	}
	var slots []int
	for i, a := range now.Assignments {
		if a.UID != j.uids[i] {
			slots = append(slots, i)
		}
	}
	if want := []int{1}; check.Replaced > 0 && !slices.Equal(slots, want) || check.Replaced == 0 && len(slots) > 0 {
		t.Errorf("the pods of slots %v were replaced: %+v", slots, check)
	}
	if n := len(j.gang.Status.Run.Recoveries); n > 0 {
		t.Errorf("%d recoveries", n)
	}
}

// excluded checks that a node is excluded, by this gang's proven word, only if the check named a pod on it and it was not repaired since.
// Gangs of one namespace exclude one node of two.
func (j *job) excluded(ctx context.Context, t *testing.T, check *v1alpha1.NodeCheck) {
	t.Helper()
	out := 0
	for _, node := range j.nodeList(ctx, t) {
		words, err := v1alpha1.NodeSuspicionsOf(&node)
		o, err2 := v1alpha1.NodeOutageOf(&node)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		named := !j.healed && slices.ContainsFunc(check.Named, func(n v1alpha1.NamedPod) bool { return n.Node == node.Name })
		if proven := len(words) == 1 && words[0].Proven && words[0].Namespace == namespace; proven && !named {
			t.Errorf("node %s has suspicions %+v: %s", node.Name, words, check.Message)
		}
		if o != nil && o.Decision == v1alpha1.DecisionExclude && o.Cause == v1alpha1.CauseNodeSuspected {
			out++
		} else if o != nil {
			t.Errorf("node %s: decision %+v", node.Name, o)
		}
	}
	if want := min(int(check.Replaced), 1); out != want && !j.healed {
		t.Errorf("%d nodes are excluded, want %d", out, want)
	}
}

// cut adds or deletes the rules that drop all packets between the pod of slot 1 and those of other slots.
func cut(rule string, slots ...int) func(context.Context, *testing.T, *job) {
	return func(ctx context.Context, t *testing.T, j *job) {
		for _, slot := range slots {
			peer := j.pod(ctx, t, slot).Status.PodIP
			j.enter(ctx, t, "iptables", rule, "INPUT", "-s", peer, "-j", "DROP")
			j.enter(ctx, t, "iptables", rule, "OUTPUT", "-d", peer, "-j", "DROP")
		}
	}
}

// narrow limits what the pod of slot 1 sends, also to the coordinator.
func narrow(ctx context.Context, t *testing.T, j *job) {
	j.enter(ctx, t, strings.Fields("tc qdisc add dev eth0 root tbf rate 1mbit burst 16kb latency 10s")...)
}

// overrule ends the check as a user does who does not believe it.
func overrule(ctx context.Context, t *testing.T, j *job) {
	if c := j.gang.Status.Run.NodeCheck; c.Result != noHealthy {
		t.Errorf("the gang does not wait: %+v", c)
	}
	if out, err := j.RunKubectl(ctx, "annotate", "job", j.name, "-n", namespace, v1alpha1.AnnotationNodeCheck+"=off", "--overwrite"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func killAgent(ctx context.Context, t *testing.T, j *job) {
	if _, err := j.Kill(ctx, namespace, j.pod(ctx, t, 1).Name, container, harness.Agent); err != nil {
		t.Fatal(err)
	}
}

func killLeader(ctx context.Context, t *testing.T, j *job) {
	p, err := j.Leader(ctx, "holdfast-controller")
	if err != nil || p == nil {
		t.Fatalf("no controller leads: %v", err)
	}
	if _, err := j.Kill(ctx, v1alpha1.Namespace, p.Name, "controller", harness.Numbered(1)); err != nil {
		t.Fatal(err)
	}
}
