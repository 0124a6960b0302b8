package kinds

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/test/devcluster/nvml"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

// stage is how far a replacement is, for the pod that is replaced.
type stage string

const (
	isMember stage = "in its job"
	isMarked stage = "marked"
	isGone   stage = "gone"
)

func stageOf(pod *corev1.Pod) stage {
	switch {
	case pod == nil:
		return isGone
	case membership.Replaced(pod):
		return isMarked
	}
	return isMember
}

// absence is the time in which the controllers of all kinds are away: killed while the old pods are at one stage, back at another.
type absence struct{ killed, back stage }

// absences are the rows of the crash table in docs/designs/kinds.md.
var absences = []absence{{isMember, isMarked}, {isMember, isGone}, {isMarked, isGone}}

// testControllersAway: the controllers of all kinds are away during a replacement that Holdfast decides on. It ends once they are back, and
// they have counted nothing. A disruption budget holds the replacement between the mark and the eviction.
func testControllersAway(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.All...)
	v := &vacancy{world: w}
	for i, n := range w.Nodes() {
		if i == 0 {
			v.steady = n.Name
		} else {
			v.spare = append(v.spare, n.Name)
		}
	}
	var histories []*history
	for _, kind := range []string{"VolcanoJob", "JobSet", "PyTorchJob"} {
		p := beside(ctx, t, w, subjectOf(t, kind), ours, "-away", func(obj *unstructured.Unstructured) { v.pin(kind, obj) })
		v.jobs, histories = append(v.jobs, p), append(histories, p.follow(ctx, t))
	}
	if _, err := w.RunKubectl(ctx, "cordon", v.spare[1]); err != nil {
		t.Fatal(err)
	}
	for _, p := range v.jobs {
		p.begins(ctx, t)
	}
	if _, err := w.RunKubectl(ctx, "uncordon", v.spare[1]); err != nil {
		t.Fatal(err)
	}
	for _, a := range absences {
		v.play(ctx, t, a)
	}
	for i, p := range v.jobs {
		if troubles := histories[i].end(); len(troubles) > 0 {
			t.Errorf("%s: %v", p.job, troubles)
		}
		p.remove(ctx, t)
	}
}

// vacancy has one job of each kind. The pods of slot 0 are together on one of the two spare nodes, all others on the steady one, which also
// has the controllers.
type vacancy struct {
	*world
	jobs   []*cell
	steady string
	spare  []string
}

// pin makes the pods small and restricts them to their nodes.
func (v *vacancy) pin(kind string, obj *unstructured.Unstructured) {
	changePods(obj.Object, small)
	changePods(obj.Object, func(spec map[string]any) { within(spec, v.steady) })
	spec := obj.Object["spec"].(map[string]any)
	first := map[string]func() any{
		"VolcanoJob": func() any { return spec["tasks"].([]any)[0] },
		"JobSet":     func() any { return spec["replicatedJobs"].([]any)[0] },
		"PyTorchJob": func() any { return spec["pytorchReplicaSpecs"].(map[string]any)["Master"] },
	}[kind]
	changePods(first(), func(spec map[string]any) { within(spec, v.spare...) })
}

func within(spec map[string]any, nodes ...string) {
	var names []any
	for _, n := range nodes {
		names = append(names, n)
	}
	hostname := map[string]any{"key": corev1.LabelHostname, "operator": "In", "values": names}
	spec["affinity"] = map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
		"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{hostname}}},
	}}}
}

// play has the node of all pods of slot 0 fail, with the controllers away for a time.
func (v *vacancy) play(ctx context.Context, t *testing.T, a absence) {
	t.Helper()
	v.Say("  killed while the old pods are %s, back when they are %s", a.killed, a.back)
	node := v.jobs[0].shape.Assignments[0].Node
	for _, p := range v.jobs {
		if is := p.shape.Assignments[0].Node; is != node {
			t.Fatalf("slot 0 of %s is on %s, not on %s", p.job, is, node)
		}
		// A pod whose agent answers would end by itself, without an eviction.
		pod := p.shape.Assignments[0].Pod
		if err := p.Signal(ctx, namespace, pod, p.container(ctx, t, pod), syscall.SIGSTOP, harness.Agent); err != nil {
			t.Fatal(err)
		}
	}
	release := v.budget(ctx, t)
	v.reach(ctx, t, a, isMember)
	if err := v.Node(node).Fail(nvml.Fault{Xid: 79, Lost: true}); err != nil {
		t.Fatal(err)
	}
	v.all(ctx, t, isMarked)
	// The node can take pods in the next play only some time after it is healed. Until then, it must take none.
	if _, err := v.RunKubectl(ctx, "cordon", node); err != nil {
		t.Fatal(err)
	}
	if err := v.Node(node).Heal(); err != nil {
		t.Fatal(err)
	}
	v.reach(ctx, t, a, isMarked)
	v.holds(ctx, t, "the marked pods stay", func(ctx context.Context, p *cell) bool {
		pod, err := v.old(ctx, p)
		return err == nil && stageOf(pod) == isMarked && pod.DeletionTimestamp == nil
	})
	release()
	v.all(ctx, t, isGone)
	if a.back == isGone {
		v.holds(ctx, t, "no pod is created", func(ctx context.Context, p *cell) bool {
			members, _, err := p.Members(ctx, namespace, p.job)
			early := a.killed == isMarked && p.name == "JobSet" // a JobSet's new pod is created at the mark
			return err == nil && (early || len(members) == int(p.pods)-1)
		})
	}
	v.reach(ctx, t, a, isGone)
	for _, p := range v.jobs {
		p.after(ctx, t, fmt.Sprintf("%s: controllers killed: %s, back: %s", p.job, a.killed, a.back), 0)
		if p.shape.Assignments[0].Node == node {
			t.Errorf("%s: the new pod is on the sick node", p.job)
		}
	}
	if _, err := v.RunKubectl(ctx, "uncordon", node); err != nil {
		t.Fatal(err)
	}
	if err := v.Well(ctx, node); err != nil {
		t.Fatal(err)
	}
}

// reach kills the controllers, or brings them back, if that is to be at this stage.
func (v *vacancy) reach(ctx context.Context, t *testing.T, a absence, now stage) {
	t.Helper()
	var move func(*operators.Operator, context.Context, *harness.Cluster) error
	switch now {
	case a.killed:
		move = (*operators.Operator).Kill
	case a.back:
		move = (*operators.Operator).Revive
	default:
		return
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, o := range operators.All {
		all.Go(func() error { return move(o, ctx, v.Cluster) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

// budget forbids all evictions of members, and returns how to allow them.
func (v *vacancy) budget(ctx context.Context, t *testing.T) (release func()) {
	t.Helper()
	none := intstr.FromInt32(0)
	budgets := v.Kube().PolicyV1().PodDisruptionBudgets(namespace)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "hold"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &none,
			Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key:      v1alpha1.LabelGang,
				Operator: metav1.LabelSelectorOpExists,
			}}},
		},
	}
	if _, err := budgets.Create(ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, v.Cluster, "the budget is in force", func(ctx context.Context) (bool, string) {
		is, err := budgets.Get(ctx, b.Name, metav1.GetOptions{})
		return err == nil && len(is.Status.Conditions) > 0, fmt.Sprint(err)
	})
	return func() {
		if err := budgets.Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// old is the pod that a job had in slot 0 at the beginning of a play; nil: it is gone.
func (v *vacancy) old(ctx context.Context, p *cell) (*corev1.Pod, error) {
	was := p.shape.Assignments[0]
	pod, err := v.Kube().CoreV1().Pods(namespace).Get(ctx, was.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && string(pod.UID) != was.UID {
		return nil, nil
	}
	return pod, err
}

// all waits until the old pod of each job is at a stage.
func (v *vacancy) all(ctx context.Context, t *testing.T, want stage) {
	t.Helper()
	for _, p := range v.jobs {
		until(ctx, t, v.Cluster, fmt.Sprintf("the old pod of %s is %s", p.job, want), func(ctx context.Context) (bool, string) {
			pod, err := v.old(ctx, p)
			is := stageOf(pod)
			return err == nil && is == want, fmt.Sprintf("%s, %v", is, err)
		})
	}
}

// holds demands for a while that something stays true of all jobs, and that no controller counts anything.
func (v *vacancy) holds(ctx context.Context, t *testing.T, what string, is func(context.Context, *cell) bool) {
	t.Helper()
	err := v.During(ctx, what, 5*time.Second, func(ctx context.Context) (bool, string) {
		i := slices.IndexFunc(v.jobs, func(p *cell) bool { return !is(ctx, p) || p.counts(ctx, t) != p.counted })
		if i < 0 {
			return true, ""
		}
		return false, v.jobs[i].job + " " + v.jobs[i].counts(ctx, t)
	})
	if err != nil {
		t.Error(err)
	}
}
