package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// leases holds when each node's lease was last seen to move, by our own clock: nodes' clocks differ.
type leases struct {
	now func() time.Time

	mu sync.Mutex
	// renewed has an entry per lease; zero: it has not moved since we watch. Guarded by mu.
	renewed map[string]time.Time
}

func newLeases(now func() time.Time) *leases {
	return &leases{now: now, renewed: map[string]time.Time{}}
}

// of returns when the node's lease moved, and whether there is one.
func (l *leases) of(node string) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.renewed[node]
	return at, ok
}

func (l *leases) set(name string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed[name] = at
}

func (l *leases) OnAdd(obj any, first bool) {
	lease, ok := obj.(*coordinationv1.Lease)
	switch {
	case !ok:
	case first:
		l.set(lease.Name, time.Time{})
	default:
		l.set(lease.Name, l.now())
	}
}

func (l *leases) OnUpdate(before, after any) {
	old, ok1 := before.(*coordinationv1.Lease)
	lease, ok2 := after.(*coordinationv1.Lease)
	if ok1 && ok2 && !old.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		l.set(lease.Name, l.now())
	}
}

func (l *leases) OnDelete(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.renewed, lease.Name)
	}
}

// nodes wakes the controller when a Node's words changed; what else is new it sees within a second.
type nodes struct{ wake chan<- struct{} }

func (n nodes) touch() {
	select {
	case n.wake <- struct{}{}:
	default: // awake already
	}
}

func (n nodes) OnAdd(any, bool) { n.touch() }

func (n nodes) OnUpdate(before, after any) {
	old, ok1 := before.(*corev1.Node)
	node, ok2 := after.(*corev1.Node)
	if ok1 && ok2 && (old.Annotations[v1alpha1.AnnotationHealth] != node.Annotations[v1alpha1.AnnotationHealth] ||
		old.Annotations[v1alpha1.AnnotationOutage] != node.Annotations[v1alpha1.AnnotationOutage]) {
		n.touch()
	}
}

func (n nodes) OnDelete(any) { n.touch() }

// SlimNode takes out of a Node what no part here reads; SlimLease likewise. They are transforms of a cache.
func SlimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Status.Images = nil, nil
	}
	return obj, nil
}

// SlimLease keeps name and renew time.
func SlimLease(obj any) (any, error) {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: lease.Name, Namespace: lease.Namespace, UID: lease.UID, ResourceVersion: lease.ResourceVersion},
			Spec:       coordinationv1.LeaseSpec{RenewTime: lease.Spec.RenewTime},
		}, nil
	}
	return obj, nil
}
