package replace

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// slotGaps watches pods and records how long each slot of a job was empty.
type slotGaps struct {
	mu       sync.Mutex
	released map[string]time.Time       // empty slots, by job and slot
	known    map[string]bool            // pods whose release was seen
	gaps     map[string][]time.Duration // how long slots were empty, by job
}

// follow watches pods until the test ends.
func follow(ctx context.Context, t *testing.T, w *world) *slotGaps {
	t.Helper()
	b := &slotGaps{released: map[string]time.Time{}, known: map[string]bool{}, gaps: map[string][]time.Duration{}}
	factory := informers.NewSharedInformerFactoryWithOptions(w.Kube(), 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.LabelGang }))
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { b.seen(o.(*corev1.Pod), true) }, UpdateFunc: func(_, o any) { b.seen(o.(*corev1.Pod), false) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return b
}

func (b *slotGaps) seen(pod *corev1.Pod, added bool) {
	job := pod.Labels[v1alpha1.LabelGang]
	place := fmt.Sprintf("%s/%s", job, pod.Labels[batchv1.JobCompletionIndexAnnotation])
	b.mu.Lock()
	defer b.mu.Unlock()
	since, empty := b.released[place]
	switch {
	case pod.Labels[v1alpha1.LabelReplaced] != "" && !added && !b.known[string(pod.UID)]:
		b.released[place], b.known[string(pod.UID)] = time.Now(), true
	case added && empty && pod.Labels[v1alpha1.LabelReplaced] == "":
		b.gaps[job] = append(b.gaps[job], time.Since(since))
		delete(b.released, place)
	}
}

// of returns the gaps of a job.
func (b *slotGaps) of(job string) []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.gaps[job])
}
