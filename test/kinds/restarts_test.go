package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/operators"
)

// noRestart is a job whose own controller fails it at the first pod that it counts as failed, or would at least say that it restarts it.
type noRestart struct {
	kind, suffix string
	change       func(spec map[string]any)
}

// noRestarts are a PyTorchJob of each restart policy, and a JobSet.
func noRestarts() []noRestart {
	all := []noRestart{{"JobSet", "-no-restart", func(spec map[string]any) {
		spec["failurePolicy"] = map[string]any{"maxRestarts": int64(0)}
	}}}
	for _, policy := range []string{"Never", "OnFailure", "Always", "ExitCode"} {
		all = append(all, noRestart{"PyTorchJob", "-" + strings.ToLower(policy), func(spec map[string]any) {
			spec["runPolicy"] = map[string]any{"backoffLimit": int64(0)}
			for _, role := range spec["pytorchReplicaSpecs"].(map[string]any) {
				role.(map[string]any)["restartPolicy"] = policy
			}
		}})
	}
	return all
}

// adapt changes the example: its pods end soon, and need little and no GPU, so that many have room beside each other.
func (n noRestart) adapt(obj *unstructured.Unstructured) {
	n.change(obj.Object["spec"].(map[string]any))
	changePods(obj.Object, small)
}

func small(spec map[string]any) {
	spec["terminationGracePeriodSeconds"] = int64(5)
	resources, _ := containers(spec)[0]["resources"].(map[string]any)
	for _, list := range resources {
		quantities := list.(map[string]any)
		delete(quantities, layout.GPUResource)
		quantities[string(corev1.ResourceMemory)] = "256Mi"
	}
}

// testRestartPolicies: an evicted pod is replaced, and the job's own controller neither fails nor restarts the job, not even for a moment.
// Without Holdfast's annotation the same controller does, at the same eviction.
func testRestartPolicies(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.Volcano, operators.JobSet, operators.TrainingOperator)
	var jobs []*cell
	var histories []*history
	for _, n := range noRestarts() {
		p := beside(ctx, t, w, subjectOf(t, n.kind), ours, n.suffix, n.adapt)
		jobs, histories = append(jobs, p), append(histories, p.follow(ctx, t))
	}
	for _, p := range jobs {
		p.begins(ctx, t)
	}
	for _, slot := range []int{1, 0} {
		for _, p := range jobs {
			p.evicted(ctx, t, slot)
		}
		for _, p := range jobs {
			p.after(ctx, t, fmt.Sprintf("%s: pod of slot %d evicted", p.job, slot), slot)
		}
	}
	for i, p := range jobs {
		if troubles := histories[i].end(); len(troubles) > 0 {
			t.Errorf("%s: %v", p.job, troubles)
		}
		p.Say("  %s: two pods replaced, %s", p.job, p.counted)
		p.remove(ctx, t)
	}
	for _, n := range noRestarts() {
		n.unprotected(ctx, t, w)
	}
}

// unprotected demands that the controller of a job without Holdfast's annotation fails or restarts it when a pod is evicted.
func (n noRestart) unprotected(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	s := subjectOf(t, n.kind)
	obj := plain(ctx, t, w, s, ours, "-plain"+n.suffix)
	n.adapt(obj)
	create(ctx, t, w.Cluster, obj)
	p := &cell{subject: s, Cluster: w.Cluster, scheduler: ours, job: obj.GetName()}
	h := p.follow(ctx, t)
	var running map[string]string
	until(ctx, t, w.Cluster, "all pods of "+p.job+" run", func(ctx context.Context) (bool, string) {
		var err error
		running, err = p.running(ctx)
		return len(running) == int(s.pods), fmt.Sprintf("%d, %v", len(running), err)
	})
	last := slices.Max(slices.Collect(maps.Keys(running)))
	evict(ctx, t, w.Cluster, last, running[last])
	until(ctx, t, w.Cluster, "its controller fails or restarts "+p.job, func(context.Context) (bool, string) {
		return len(h.troubles()) > 0, ""
	})
	p.Say("  %s, without Holdfast: %v", p.job, h.end())
	p.remove(ctx, t)
}

// running returns the names and UIDs of the job's pods that run.
func (p *cell) running(ctx context.Context) (map[string]string, error) {
	list, err := p.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, pod := range list.Items {
		if strings.HasPrefix(pod.Name, p.job+"-") && pod.Status.Phase == corev1.PodRunning {
			found[pod.Name] = string(pod.UID)
		}
	}
	return found, nil
}

// history is what the controller of a job wrote on its object, version by version: a condition Restarting does not stay there.
type history struct {
	stop  func()
	ended chan struct{}

	mu    sync.Mutex
	found []string // guarded by mu
}

// follow watches the object of a job.
func (p *cell) follow(ctx context.Context, t *testing.T) *history {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	plural, _, _ := strings.Cut(p.resource, ".")
	resource := p.kind.GroupVersion().WithResource(plural)
	ctx, cancel := context.WithCancel(ctx)
	watch, err := api.Resource(resource).Namespace(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.job})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	h := &history{stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		defer watch.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-watch.ResultChan():
				obj, is := e.Object.(*unstructured.Unstructured)
				if !open || !is {
					h.note(fmt.Sprintf("the watch ended early: %v", e.Object))
					return
				}
				h.note(p.troubles(obj.Object)...)
			}
		}
	}()
	return h
}

// troubles returns in which words an object says that its controller failed or restarted it.
func (p *cell) troubles(obj map[string]any) []string {
	found := slices.DeleteFunc(conditions(obj), func(c string) bool {
		return !strings.HasPrefix(c, "Fail") && !strings.HasPrefix(c, "Restarting")
	})
	if n := p.restarts(obj); n > 0 {
		found = append(found, fmt.Sprintf("%d restarts", n))
	}
	if phase, _, _ := unstructured.NestedString(obj, "status", "state", "phase"); slices.Contains(volcanoTroubles, phase) {
		found = append(found, "phase "+phase)
	}
	return found
}

// volcanoTroubles are the phases of a Volcano Job that has not been left alone.
var volcanoTroubles = []string{"Aborting", "Aborted", "Restarting", "Terminating", "Terminated", "Failed"}

func (h *history) note(found ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range found {
		if !slices.Contains(h.found, f) {
			h.found = append(h.found, f)
		}
	}
}

// troubles returns what was found so far.
func (h *history) troubles() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.found)
}

// end ends the watch and returns what it found.
func (h *history) end() []string {
	h.stop()
	<-h.ended
	return h.troubles()
}
