// Package simnode keeps simulated nodes alive: Node objects with leases that
// are renewed, whose pods become Running as soon as they are bound and go away
// when they are deleted. No process stands behind them: they are for scale only.
package simnode

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

const (
	makers  = 16
	workers = 32
	// leaseSeconds is a kubelet's; renewEvery is longer than a kubelet's 10 s and
	// well below the 50 s after which the control plane takes a node for dead.
	leaseSeconds = 40
	renewEvery   = 20 * time.Second
)

// Run makes all nodes, then keeps them and their pods until ctx ends. Made is
// closed when all nodes are there.
func Run(ctx context.Context, c kubernetes.Interface, s *layout.Spec, made chan<- struct{}) error {
	if err := each(s.Sim.Nodes, makers, func(i int) error { return makeNode(ctx, c, s, i) }); err != nil {
		return fmt.Errorf("making simulated nodes: %w", err)
	}
	close(made)
	go renewAll(ctx, c, s)
	return runPods(ctx, c, s)
}

// each calls do for 0 to n-1, some at a time, and returns the first error.
func each(n, parallel int, do func(int) error) error {
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, parallel)
	for range parallel {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range next {
				if err := do(i); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(errs)
	return <-errs
}

func makeNode(ctx context.Context, c kubernetes.Interface, s *layout.Spec, i int) error {
	node := Node(s, i, time.Now())
	made, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease(made, time.Now()), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func lease(n *corev1.Node, now time.Time) *coordinationv1.Lease {
	seconds, holder, renewed := int32(leaseSeconds), n.Name, metav1.NewMicroTime(now)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
}

// renewAll renews every lease once per renewEvery, spread evenly.
func renewAll(ctx context.Context, c kubernetes.Interface, s *layout.Spec) {
	tick := time.NewTicker(renewEvery / time.Duration(s.Sim.Nodes))
	defer tick.Stop()
	due := make(chan int, s.Sim.Nodes)
	for range 4 {
		go func() {
			for i := range due {
				name := s.SimNodeName(i)
				patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
				_, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "simulated nodes: renewing a lease:", err)
				}
			}
		}()
	}
	defer close(due)
	for i := 0; ; i = (i + 1) % s.Sim.Nodes {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			select {
			case due <- i:
			default: // the API server is slower than that; the next round comes
			}
		}
	}
}

// runPods brings every pod of a simulated node to where it should be.
func runPods(ctx context.Context, c kubernetes.Interface, s *layout.Spec) error {
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}))
	pods := factory.Core().V1().Pods().Informer()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	prefix := strings.TrimSuffix(s.SimNodeName(0), "0001")
	add := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok && strings.HasPrefix(p.Spec.NodeName, prefix) && needsWork(p) {
			queue.Add(p.Namespace + "/" + p.Name)
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return ctx.Err()
	}
	for range workers {
		go func() {
			for {
				key, stop := queue.Get()
				if stop {
					return
				}
				if err := settle(ctx, c, s, pods.GetIndexer(), key); err != nil {
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key)
			}
		}()
	}
	<-ctx.Done()
	queue.ShutDown()
	return ctx.Err()
}

func needsWork(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodPending
}

func settle(ctx context.Context, c kubernetes.Interface, s *layout.Spec, store cache.Indexer, key string) error {
	obj, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return err
	}
	p, ok := obj.(*corev1.Pod)
	if !ok || !needsWork(p) {
		return nil
	}
	if p.DeletionTimestamp != nil {
		now := int64(0)
		err := c.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID},
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": RunningStatus(p, s, time.Now())})
	if err != nil {
		return err
	}
	_, err = c.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
