package claims

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// A binding writes devices to claims before it names the pod's node. Where it fails in between, or the scheduler ends there,
// the pod stays tied to that node by its claims. The framework gives such devices back once a pod has found no node, a pod
// and a claim at a time; a gang's members are not looked for nodes one by one, so it is done here for all of them, whenever
// the gang was refused: what a member has that is on no node and on its way to none, nobody uses.

const (
	// releaseTime bounds one round, releaseAtOnce how many writes are under way.
	releaseTime   = 30 * time.Second
	releaseAtOnce = 16
	// planAgain is after how long a gang is planned for which devices are given back first.
	planAgain = time.Second
	// mostTied is how many claims that tie members to nodes are planned around: each makes a shape of its own, for which filters are asked
	// about every node, while nobody is scheduled.
	mostTied = 16
)

// ReleasedFirst is the answer to a member whose gang is not planned yet for that.
const ReleasedFirst = "devices that the gang's resource claims still hold from an earlier binding are released first"

// stale is a claim with devices of a member that has no node.
type stale struct {
	pod   *v1.Pod
	claim *resourcev1.ResourceClaim
	// special: kube-scheduler itself made the claim, for extended resources.
	special bool
}

// Releaser gives stale claims' devices back.
type Releaser struct {
	client kubernetes.Interface
	// manager is nil where nobody serves claims; then there is nothing to give back.
	manager fwk.SharedDRAManager
	gangs   Gangs
	wake    func(klog.Logger, types.NamespacedName)
	rounds  rounds
}

// Gangs reports which members may lose devices.
type Gangs interface {
	// IsPending reports whether a member has no node and no planned one.
	IsPending(gang types.NamespacedName, uid types.UID) bool
}

// NewReleaser makes a Releaser; wake has a gang planned.
func NewReleaser(
	client kubernetes.Interface,
	manager fwk.SharedDRAManager,
	gangs Gangs,
	wake func(klog.Logger, types.NamespacedName),
) *Releaser {
	return &Releaser{client: client, manager: manager, gangs: gangs, wake: wake}
}

// Release has what is left over from earlier bindings given back, aside. One round for a gang is under way at a time, and the gang
// is not planned meanwhile: a member that got its node would lose its devices there.
func (r *Releaser) Release(ctx context.Context, key types.NamespacedName, of gangcache.Snapshot, infos []fwk.NodeInfo) {
	if r.manager == nil ||
		!slices.ContainsFunc(of.Members, func(m gangcache.Member) bool { return m.State == gangcache.Pending && Has(r.manager, m.Pod) }) {
		return
	}
	over, free := r.rounds.begin(key)
	if !free {
		return
	}
	nodes, logger := nodesOf(infos), klog.FromContext(ctx)
	go func() {
		defer func() {
			if over() {
				r.wake(logger, key)
			}
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		left := staleClaims(r.manager, of, nodes)
		workqueue.ParallelizeUntil(ctx, releaseAtOnce, len(left), func(i int) { r.releaseOne(ctx, key, left[i]) })
	}()
}

// ReleaseFirst reports whether the gang is to be planned later, because devices are given back, or because so many members are
// tied by what they have that all of it is given back first, which it begins.
func (r *Releaser) ReleaseFirst(ctx context.Context, key types.NamespacedName, of gangcache.Snapshot, infos []fwk.NodeInfo) bool {
	if r.rounds.await(key) {
		return true
	}
	if r.manager == nil || !slices.ContainsFunc(of.Members, func(m gangcache.Member) bool {
		return m.State == gangcache.Pending && len(m.Pod.Spec.ResourceClaims) > 0
	}) || len(tied(r.manager, of, nodesOf(infos))) <= mostTied {
		return false
	}
	r.Release(ctx, key, of, infos)
	time.AfterFunc(planAgain, func() { r.wake(klog.FromContext(ctx), key) })
	return true
}

// nodesOf are the nodes themselves: what they are part of changes with the next cycle.
func nodesOf(infos []fwk.NodeInfo) []*v1.Node {
	nodes := make([]*v1.Node, len(infos))
	for i, n := range infos {
		nodes[i] = n.Node()
	}
	return nodes
}

// rounds are the gangs for which devices are given back. Its lock is a leaf.
type rounds struct {
	mu sync.Mutex
	// of says of each whether it was to be planned meanwhile.
	of map[types.NamespacedName]bool
}

// begin begins a round for a gang, if none is under way. over ends it, and reports whether the gang was to be planned meanwhile.
func (g *rounds) begin(key types.NamespacedName) (over func() bool, free bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, busy := g.of[key]; busy {
		return nil, false
	}
	if g.of == nil {
		g.of = map[types.NamespacedName]bool{}
	}
	g.of[key] = false
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		asked := g.of[key]
		delete(g.of, key)
		return asked
	}, true
}

// await reports whether a round for a gang is under way, which is then to be planned after it.
func (g *rounds) await(key types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, busy := g.of[key]
	if busy {
		g.of[key] = true
	}
	return busy
}

// tied lists what pending members have and cannot use on some node, less what members with a node have as well.
func tied(manager fwk.SharedDRAManager, r gangcache.Snapshot, nodes []*v1.Node) []stale {
	var all []stale
	used := map[types.UID]bool{}
	for _, m := range r.Members {
		claims := theirs(manager, m.Pod)
		for _, claim := range claims {
			if m.State != gangcache.Pending {
				used[claim.UID] = true
			} else if isStale(claim, m.Pod) && manager.ResourceClaims().GetPendingAllocation(claim.UID) == nil &&
				ties(claim.Status.Allocation, nodes) {
				all = append(all, stale{pod: m.Pod, claim: claim})
			}
		}
	}
	return slices.DeleteFunc(all, func(l stale) bool { return used[l.claim.UID] })
}

// staleClaims are what ties pending members, and claims that were made for their extended resources.
func staleClaims(manager fwk.SharedDRAManager, r gangcache.Snapshot, nodes []*v1.Node) []stale {
	all, owners := tied(manager, r, nodes), map[types.UID]*v1.Pod{}
	for _, m := range r.Members {
		if m.State == gangcache.Pending && AsksClass(manager, m.Pod) {
			owners[m.Pod.UID] = m.Pod
		}
	}
	if len(owners) == 0 {
		return all
	}
	list, err := manager.ResourceClaims().List()
	if err != nil {
		return all // it is asked for again after the next refusal
	}
	for _, claim := range list {
		if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
			continue
		}
		if owner := metav1.GetControllerOf(claim); owner != nil && owners[owner.UID] != nil {
			all = append(all, stale{pod: owners[owner.UID], claim: claim, special: true})
		}
	}
	return all
}

// theirs are the claims that a pod names and that are its own, or anybody's.
func theirs(manager fwk.SharedDRAManager, pod *v1.Pod) []*resourcev1.ResourceClaim {
	var all []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := manager.ResourceClaims().Get(pod.Namespace, *name)
		if err == nil && (!owned || resourceclaim.IsForPod(pod, claim, false) == nil) {
			all = append(all, claim)
		}
	}
	return all
}

// isStale reports whether a claim has devices, and nobody but the pod may use them.
func isStale(claim *resourcev1.ResourceClaim, pod *v1.Pod) bool {
	by := claim.Status.ReservedFor
	return claim.Status.Allocation != nil && claim.DeletionTimestamp == nil && (len(by) == 0 || (len(by) == 1 && by[0].UID == pod.UID))
}

// ties reports whether devices keep a pod off a node, or may not become ready.
func ties(a *resourcev1.AllocationResult, nodes []*v1.Node) bool {
	for i := range a.Devices.Results {
		if len(a.Devices.Results[i].BindingConditions) > 0 {
			return true
		}
	}
	if a.NodeSelector == nil {
		return false
	}
	selector, err := nodeaffinity.NewNodeSelector(a.NodeSelector)
	return err != nil || slices.ContainsFunc(nodes, func(n *v1.Node) bool { return !selector.Match(n) })
}

func (r *Releaser) releaseOne(ctx context.Context, key types.NamespacedName, l stale) {
	logger, done := klog.FromContext(ctx), false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if !r.gangs.IsPending(key, l.pod.UID) {
			return nil // it is on its way to a node, with them
		}
		err := r.clear(ctx, l)
		if apierrors.IsConflict(err) {
			now, readErr := r.client.ResourceV1().ResourceClaims(l.claim.Namespace).Get(ctx, l.claim.Name, metav1.GetOptions{})
			if readErr != nil || now.UID != l.claim.UID || (!l.special && !isStale(now, l.pod)) {
				return readErr
			}
			l.claim = now
		}
		done = err == nil
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		logger.Info("Releasing the devices of a claim; retried when the gang is refused again", "claim", klog.KObj(l.claim), "pod", klog.KObj(l.pod), "reason", err)
	case done:
		logger.V(2).Info("Devices of a claim are released: its pod is on no node", "claim", klog.KObj(l.claim), "pod", klog.KObj(l.pod), "gang", key)
	}
}

// clear does what the framework does with claims of a pod that found no node.
func (r *Releaser) clear(ctx context.Context, l stale) error {
	api := r.client.ResourceV1().ResourceClaims(l.claim.Namespace)
	claim := l.claim.DeepCopy()
	if !l.special {
		claim.Status.ReservedFor, claim.Status.Allocation, claim.Status.Devices = nil, nil, nil
		if _, err := api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("clearing its allocation: %w", err)
		}
		return nil
	}
	if i := slices.Index(claim.Finalizers, resourcev1.Finalizer); i >= 0 {
		claim.Finalizers = slices.Delete(claim.Finalizers, i, i+1)
		if _, err := api.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("removing its finalizer: %w", err)
		}
	}
	if err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	return nil
}
