package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/operators"
)

const (
	// byHand is the scheduler of pods that the test binds itself.
	byHand = "by-hand"
	// admitting is the node whose kubelet admits pods, full the one whose kubelet does not.
	admitting, full = "n2", "n3"
)

// unrejected are jobs whose own controllers fail or restart them when a kubelet rejects one pod.
func unrejected() []noRestart {
	onFailure := func(spec map[string]any) {
		changePods(spec, func(pod map[string]any) { pod["restartPolicy"] = "OnFailure" })
	}
	all := []noRestart{
		{"Job", "-rejected-never", func(map[string]any) {}},
		{"Job", "-rejected-onfailure", onFailure},
		{"VolcanoJob", "-rejected", func(spec map[string]any) {
			spec["maxRetry"], spec["policies"], spec["schedulerName"] = int64(1), restartsJob(), byHand
		}},
	}
	for _, n := range noRestarts() {
		if n.kind == "JobSet" || n.suffix == "-never" || n.suffix == "-onfailure" {
			n.suffix = "-rejected" + n.suffix
			all = append(all, n)
		}
	}
	return all
}

func (n noRestart) adaptByHand(obj *unstructured.Unstructured) {
	n.adapt(obj)
	if n.kind != "VolcanoJob" {
		changePods(obj.Object, func(spec map[string]any) { spec["schedulerName"] = byHand })
	}
}

// testRejected: a kubelet rejects a pod that was bound to its node. Another pod takes its place, and the job's own controller neither fails
// nor restarts the job. Without Holdfast's annotation the same controller does.
func testRejected(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.Volcano, operators.JobSet, operators.TrainingOperator)
	w.fill(ctx, t)
	var jobs []*cell
	var histories []*history
	for _, n := range unrejected() {
		p := beside(ctx, t, w, subjectOf(t, n.kind), ours, n.suffix, n.adaptByHand)
		jobs, histories = append(jobs, p), append(histories, p.follow(ctx, t))
	}
	for _, p := range jobs {
		p.bind(ctx, t)
	}
	for i, p := range jobs {
		p.rebind(ctx, t)
		p.begins(ctx, t)
		if troubles := histories[i].end(); len(troubles) > 0 {
			t.Errorf("%s: %v", p.job, troubles)
		}
		for _, j := range p.list(ctx, t, schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "JobList"}) {
			if n := number(j.Object, "status", "failed"); strings.HasPrefix(j.GetName(), p.job) && n > 0 {
				t.Errorf("Job %s counts %d failed pods", j.GetName(), n)
			}
		}
		p.hasReason(ctx, t)
		p.Say("  %s: a rejected pod replaced, %s", p.job, p.counted)
		p.remove(ctx, t)
	}
	for _, n := range unrejected() {
		n.rejectedPlain(ctx, t, w)
	}
	if err := w.Kube().CoreV1().Pods(namespace).Delete(ctx, "filler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rejectedPlain demands that the controller of a job without Holdfast's annotation fails or restarts it when a kubelet rejects a pod.
func (n noRestart) rejectedPlain(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	s := subjectOf(t, n.kind)
	obj := plain(ctx, t, w, s, ours, "-plain"+n.suffix)
	n.adaptByHand(obj)
	changePods(obj.Object, func(spec map[string]any) {
		containers(spec)[0]["resources"] = map[string]any{"requests": map[string]any{"cpu": "50m"}}
	})
	create(ctx, t, w.Cluster, obj)
	p := &cell{subject: s, Cluster: w.Cluster, scheduler: ours, job: obj.GetName()}
	h := p.follow(ctx, t)
	p.bind(ctx, t)
	until(ctx, t, w.Cluster, "its controller fails or restarts "+p.job, func(context.Context) (bool, string) {
		return len(h.troubles()) > 0, ""
	})
	p.Say("  %s, without Holdfast: %v", p.job, h.end())
	p.remove(ctx, t)
}

// fill leaves no CPU on a node for a member.
func (w *world) fill(ctx context.Context, t *testing.T) {
	t.Helper()
	node, err := w.Kube().CoreV1().Nodes().Get(ctx, full, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := w.Kube().CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + full})
	if err != nil {
		t.Fatal(err)
	}
	free := node.Status.Allocatable.Cpu().MilliValue() - 10
	for _, p := range pods.Items {
		for _, c := range p.Spec.Containers {
			free -= c.Resources.Requests.Cpu().MilliValue()
		}
	}
	filler := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "filler"}}
	filler.Spec.NodeName = full
	requests := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(free, resource.DecimalSI)}
	filler.Spec.Containers = []corev1.Container{{
		Name:      "main",
		Image:     layout.BaseImage,
		Command:   []string{"sleep", "36000"},
		Resources: corev1.ResourceRequirements{Requests: requests},
	}}
	if _, err := w.Kube().CoreV1().Pods(namespace).Create(ctx, filler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, w.Cluster, "the pod that fills "+full+" runs", func(ctx context.Context) (bool, string) {
		p, err := w.Kube().CoreV1().Pods(namespace).Get(ctx, "filler", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, fmt.Sprint(err, p.Status)
	})
}

// unbound returns the job's pods that wait to be bound, by name.
func (p *cell) unbound(ctx context.Context) ([]corev1.Pod, error) {
	list, err := p.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return !strings.HasPrefix(pod.Name, p.job+"-") || pod.DeletionTimestamp != nil
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// bind binds all pods of the job, the last one to the node whose kubelet does not admit it.
func (p *cell) bind(ctx context.Context, t *testing.T) {
	t.Helper()
	var pods []corev1.Pod
	until(ctx, t, p.Cluster, "all pods of "+p.job+" wait", func(ctx context.Context) (bool, string) {
		var err error
		pods, err = p.unbound(ctx)
		return len(pods) == int(p.pods), fmt.Sprintf("%d, %v", len(pods), err)
	})
	for i, pod := range pods {
		node := admitting
		if i == len(pods)-1 {
			node = full
		}
		if err := p.bindPod(ctx, &pod, node); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *cell) bindPod(ctx context.Context, pod *corev1.Pod, node string) error {
	return p.Kube().CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

// rebind binds the pod that takes the place of the rejected one.
func (p *cell) rebind(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, p.Cluster, "another pod of "+p.job+" waits", func(ctx context.Context) (bool, string) {
		pods, err := p.unbound(ctx)
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprintf("%d, %v", len(pods), err)
		}
		err = p.bindPod(ctx, &pods[0], admitting)
		return err == nil, fmt.Sprint(err)
	})
}

// hasReason demands that an event on the job says why its pod was replaced.
func (p *cell) hasReason(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, p.Cluster, "event "+v1alpha1.ReasonEndedByNode+" of "+p.job, func(ctx context.Context) (bool, string) {
		events, err := p.Kube().EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + v1alpha1.ReasonEndedByNode})
		if err != nil {
			return false, err.Error()
		}
		return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == p.job && e.Regarding.Kind == p.kind.Kind && strings.Contains(e.Note, "OutOfcpu")
		}), fmt.Sprintf("%d of others", len(events.Items))
	})
}
