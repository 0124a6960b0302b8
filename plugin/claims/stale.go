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

// A binding allocates devices to claims before it names the pod's node. If the binding fails in between, or the scheduler ends, the claims
// tie the pod to that node. The framework deallocates such devices when a pod has found no node, one pod and one claim at a time; it does
// not try a gang's members one by one. So the Releaser does it for all members whenever the gang was refused: claims of a member that has
// no node and no planned one are in use by no pod.

const (
	// releaseTime bounds one round, releaseAtOnce the number of concurrent writes.
	releaseTime   = 30 * time.Second
	releaseAtOnce = 16
	// planAgain is the delay before a gang is planned whose devices are released first.
	planAgain = time.Second
	// mostTied is the most claims that tie members to nodes with which a gang is still planned: each makes a kind of pods of its own, for
	// which filters run on every node while no other pod is scheduled.
	mostTied = 16
)

// ReleasedFirst is the refusal of a member while devices of its gang are being released.
const ReleasedFirst = "devices that the gang's resource claims still hold from an earlier binding are released first"

// stale is an allocated claim of a member that has no node.
type stale struct {
	pod   *v1.Pod
	claim *resourcev1.ResourceClaim
	// special: kube-scheduler itself created the claim, for extended resources.
	special bool
}

// Releaser deallocates stale claims.
type Releaser struct {
	client kubernetes.Interface
	// manager is nil if the cluster serves no claims; then there is nothing to release.
	manager fwk.SharedDRAManager
	gangs   Gangs
	wake    func(klog.Logger, types.NamespacedName)
	rounds  rounds
}

// Gangs reports which members' claims may be released.
type Gangs interface {
	// IsPending reports whether a member has no node and no planned one.
	IsPending(gang types.NamespacedName, uid types.UID) bool
}

// NewReleaser returns a Releaser. wake makes the scheduler plan a gang.
func NewReleaser(
	client kubernetes.Interface,
	manager fwk.SharedDRAManager,
	gangs Gangs,
	wake func(klog.Logger, types.NamespacedName),
) *Releaser {
	return &Releaser{client: client, manager: manager, gangs: gangs, wake: wake}
}

// Release starts a goroutine that deallocates what earlier bindings left. Each gang has one round at a time and is not planned meanwhile: a
// member that got its node would lose its devices there.
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

// ReleaseFirst reports whether the gang must be planned later: a round is under way, or more than mostTied claims tie its members, and
// ReleaseFirst has started a round for them.
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

// nodesOf returns the Nodes: the NodeInfos change with the next cycle.
func nodesOf(infos []fwk.NodeInfo) []*v1.Node {
	nodes := make([]*v1.Node, len(infos))
	for i, n := range infos {
		nodes[i] = n.Node()
	}
	return nodes
}

// rounds are the gangs whose devices are being released. Its lock is a leaf.
type rounds struct {
	mu sync.Mutex
	// of records for each gang whether it was to be planned meanwhile.
	of map[types.NamespacedName]bool
}

// begin starts a round for a gang, unless one is under way. over ends it and reports whether the gang was to be planned meanwhile.
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

// await reports whether a round for a gang is under way; if so, the gang is planned after the round.
func (g *rounds) await(key types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, busy := g.of[key]
	if busy {
		g.of[key] = true
	}
	return busy
}

// tied returns the claims of pending members that exclude some node, without claims that members with a node share.
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

// staleClaims returns the claims that tie pending members, and claims created for their extended resources.
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
		return all // retried after the next refusal
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

// theirs returns the claims that a pod names and that are its own or come from no template.
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

// isStale reports whether a claim is allocated and reserved for no other pod.
func isStale(claim *resourcev1.ResourceClaim, pod *v1.Pod) bool {
	by := claim.Status.ReservedFor
	return claim.Status.Allocation != nil && claim.DeletionTimestamp == nil && (len(by) == 0 || (len(by) == 1 && by[0].UID == pod.UID))
}

// ties reports whether an allocation excludes some node, or its devices may not become ready.
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
			return nil // the pod is on its way to a node, with these devices
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

// clear does to a claim what the framework does for a pod that found no node.
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
