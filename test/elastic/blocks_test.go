package elastic

import (
	"context"
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster"
)

// all and unit are the pods of the job of wholeBlocks, one on each node, and those of a block.
const all, unit = int32(4), int32(2)

// wholeBlocks loses one pod of a block: the other block trains, the healthy pod waits on its node with its container, and takes part again
// once the lost pod is back. It ends with the others.
func wholeBlocks(ctx context.Context, t *testing.T, w *world) {
	j := w.more([]string{"bash", "-c", "PATH=$PATH:/opt/holdfast-python/venv/bin exec " + fmt.Sprintf(line, all, 1, "torch_trainer.py", w.job)})
	pods := all
	j.Spec.Parallelism, j.Spec.Completions = &pods, &pods
	j.Spec.Template.Spec.NodeSelector = nil // also on the node of the control plane
	j.Annotations[v1alpha1.AnnotationMinPods], j.Annotations[v1alpha1.AnnotationPodsUnit] = fmt.Sprint(unit), fmt.Sprint(unit)
	w.create(ctx, t, j)
	w.until(ctx, t, "all ranks train", blocksTrain(1, all, 5))
	lost := w.apart(ctx, t)
	mate := lost ^ 1
	was := w.podOf(ctx, t, mate)
	node := w.nodeOf(ctx, t, lost)
	w.cut(ctx, t, node)
	two := w.until(ctx, t, "one block goes on", blocksTrain(2, unit, 3))
	first := int32(min(lost, mate))
	if two.RestoreStep < 5 || !slices.Equal(two.Out, []int32{first, first + 1}) {
		t.Errorf("goes on from step %d without slots %v, and slot %d is lost", two.RestoreStep, two.Out, lost)
	}
	w.says(ctx, t, v1alpha1.ReasonRunsWithFewer, "goes on with 2 of 4 pods: no node for slot")
	w.says(ctx, t, v1alpha1.ReasonRunsWithFewer, "1 waits with its block of 2")
	w.stayed(ctx, t, mate, was)

	w.mend(ctx, t, node)
	four := w.until(ctx, t, "the block is whole again", blocksTrain(two.Generation+1, all, 3))
	grew(t, four)
	w.stayed(ctx, t, mate, was)

	w.cut(ctx, t, node)
	w.until(ctx, t, "one block goes on again", blocksTrain(four.Generation+1, unit, 1))
	w.finish(ctx, t)
	if now := w.podOf(ctx, t, mate); now.UID != was.UID || now.Status.Phase != corev1.PodSucceeded {
		t.Errorf("the pod that waited is %s in phase %s", now.Name, now.Status.Phase)
	}
}

// blocksTrain is trains for the job of wholeBlocks.
func blocksTrain(generation int64, with int32, more int64) func(*v1alpha1.Gang) bool {
	return func(g *v1alpha1.Gang) bool {
		r := g.Status.Run
		return r != nil && g.Status.Phase == v1alpha1.PhaseRunning && r.Generation >= generation && int(all)-len(r.Out) == int(with) &&
			int32(r.Progress.Ranks) == with && r.Progress.Step >= r.RestoreStep+more
	}
}

// apart returns a slot whose pod is not beside the control plane.
func (w *world) apart(ctx context.Context, t *testing.T) int {
	t.Helper()
	for slot := range int(all) {
		if slices.ContainsFunc(w.losable(), func(n *devcluster.Node) bool { return n.Name == w.podOf(ctx, t, slot).Spec.NodeName }) {
			return slot
		}
	}
	t.Fatal("all pods are beside the control plane")
	return 0
}

// podOf returns the pod of a slot.
func (w *world) podOf(ctx context.Context, t *testing.T, slot int) corev1.Pod {
	t.Helper()
	members, _, err := w.Members(ctx, namespace, w.job)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(p corev1.Pod) bool { return p.Labels[batchv1.JobCompletionIndexAnnotation] == fmt.Sprint(slot) })
	if i < 0 {
		t.Fatalf("no pod of slot %d among %d", slot, len(members))
	}
	return members[i]
}

// stayed checks that a slot still has a pod, in its first container.
func (w *world) stayed(ctx context.Context, t *testing.T, slot int, was corev1.Pod) {
	t.Helper()
	now := w.podOf(ctx, t, slot)
	restarts := int32(0)
	for _, c := range now.Status.ContainerStatuses {
		restarts += c.RestartCount
	}
	if now.UID != was.UID || now.Status.Phase != corev1.PodRunning || restarts > 0 {
		t.Errorf("slot %d: pod %s in phase %s with %d restarts, was %s", slot, now.Name, now.Status.Phase, restarts, was.Name)
	}
}
