package preemption

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/internal/membership"
)

// checkpointsAge is how old the known checkpoints may be when victims are selected.
const checkpointsAge = 10 * time.Second

// lastCheckpoints caches the time of each gang's last stored step: preemption loses the work since then. It is read on demand.
type lastCheckpoints struct {
	gangs dynamic.NamespaceableResourceInterface

	mu      sync.Mutex
	reading bool
	at      time.Time
	stored  map[types.NamespacedName]time.Time
}

// firstRead is how long scheduling waits for the first read.
const firstRead = 2 * time.Second

// ensureKnown reports whether the checkpoints are recent: younger than checkpointsAge, or read since asked, which may be older because a
// search waits for its turn. Otherwise it starts a read. ensureKnown waits for the first read: a replica that takes over during a search
// must reserve the room that becomes free before it plans other pods.
func (w *lastCheckpoints) ensureKnown(ctx context.Context, now, asked time.Time) bool {
	w.mu.Lock()
	first := w.at.IsZero()
	w.mu.Unlock()
	if first {
		ctx, cancel := context.WithTimeout(ctx, firstRead)
		defer cancel()
		w.read(ctx)
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.at) < checkpointsAge || (!asked.IsZero() && w.at.After(asked)) {
		return true
	}
	if !w.reading {
		w.reading = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), checkpointsAge/2)
			defer cancel()
			w.read(ctx)
		}()
	}
	return false
}

// read lists the Gangs. If a checkpoint cannot be read, lost work counts from when the pods started.
func (w *lastCheckpoints) read(ctx context.Context) {
	list, err := w.gangs.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	stored := map[types.NamespacedName]time.Time{}
	if err == nil {
		for i := range list.Items {
			u := &list.Items[i]
			text, _, _ := unstructured.NestedString(u.Object, "status", "run", "durable", "at")
			if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
				stored[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = at
			}
		}
	} else {
		klog.FromContext(ctx).Info("Reading the stored steps of gangs failed; the time since their pods started counts as lost work", "reason", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading, w.at = false, time.Now()
	if err == nil {
		w.stored = stored
	}
}

// since returns the time from which a pod's work would be lost.
func (w *lastCheckpoints) since(pod *v1.Pod) time.Time {
	from := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		from = pod.Status.StartTime.Time
	}
	key, member := membership.GroupOf(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.stored[key]; member && at.After(from) {
		return at
	}
	return from
}
