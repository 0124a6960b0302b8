package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// leases records when each node's lease was last renewed, by this process's clock: nodes' clocks differ.
type leases struct {
	now func() time.Time

	mu sync.Mutex
	// known has an entry per lease. Guarded by mu.
	known map[string]leaseState
}

// leaseState is when a lease was renewed, zero: not since this process watches, and the duration in it.
type leaseState struct {
	renewed  time.Time
	duration time.Duration
}

func newLeases(now func() time.Time) *leases {
	return &leases{now: now, known: map[string]leaseState{}}
}

// of returns the state of the node's lease, and whether there is one.
func (l *leases) of(node string) (leaseState, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, ok := l.known[node]
	return lease, ok
}

func (l *leases) set(lease *coordinationv1.Lease, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[lease.Name] = leaseState{at, time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second}
}

func (l *leases) OnAdd(obj any, first bool) {
	lease, ok := obj.(*coordinationv1.Lease)
	switch {
	case !ok:
	case first:
		l.set(lease, time.Time{})
	default:
		l.set(lease, l.now())
	}
}

func (l *leases) OnUpdate(before, after any) {
	old, ok1 := before.(*coordinationv1.Lease)
	lease, ok2 := after.(*coordinationv1.Lease)
	if ok1 && ok2 && !old.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		l.set(lease, l.now())
	}
}

func (l *leases) OnDelete(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.known, lease.Name)
	}
}

// nodes wakes the controller when a Node's verdict, request or outage changed; it reads other changes within a second.
type nodes struct{ wake chan<- struct{} }

func (n nodes) touch() {
	select {
	case n.wake <- struct{}{}:
	default: // already awake
	}
}

func (n nodes) OnAdd(any, bool) { n.touch() }

func (n nodes) OnUpdate(before, after any) {
	old, ok1 := before.(*corev1.Node)
	node, ok2 := after.(*corev1.Node)
	if ok1 && ok2 && (old.Annotations[v1alpha1.AnnotationHealth] != node.Annotations[v1alpha1.AnnotationHealth] ||
		old.Annotations[v1alpha1.AnnotationEvict] != node.Annotations[v1alpha1.AnnotationEvict] ||
		old.Annotations[v1alpha1.AnnotationSuspicions] != node.Annotations[v1alpha1.AnnotationSuspicions] ||
		old.Annotations[v1alpha1.AnnotationPasses] != node.Annotations[v1alpha1.AnnotationPasses] ||
		old.Annotations[v1alpha1.AnnotationOutage] != node.Annotations[v1alpha1.AnnotationOutage]) {
		n.touch()
	}
}

func (n nodes) OnDelete(any) { n.touch() }

// SlimNode is a cache transform: it drops what no part of the controller reads.
func SlimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Status.Images = nil, nil
	}
	return obj, nil
}

// SlimLease is a cache transform: it retains name, renew time and duration.
func SlimLease(obj any) (any, error) {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: lease.Name, Namespace: lease.Namespace, UID: lease.UID, ResourceVersion: lease.ResourceVersion},
			Spec:       coordinationv1.LeaseSpec{RenewTime: lease.Spec.RenewTime, LeaseDurationSeconds: lease.Spec.LeaseDurationSeconds},
		}, nil
	}
	return obj, nil
}
