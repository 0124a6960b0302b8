package plugin

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
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// A binding writes devices to claims before it names the pod's node. Where it fails in between, or the scheduler ends there,
// the pod stays tied to that node by its claims. The framework gives such devices back once a pod has found no node, a pod
// and a claim at a time; a gang's members are not looked for nodes one by one, so it is done here for all of them, whenever
// the gang was refused: what a member has that is on no node and on its way to none, nobody uses.

const (
	// giveBackTime bounds one round, giveBackAtOnce how many writes are under way.
	giveBackTime   = 30 * time.Second
	giveBackAtOnce = 16
	// mostTied is how many claims that tie members to nodes are planned around: each makes a shape of its own, for which filters are asked
	// about every node, while nobody is scheduled.
	mostTied = 16
)

// devicesFirst is the answer to a member whose gang is not planned yet for that.
const devicesFirst = "devices that an earlier binding left with resource claims of the gang are given back first"

// leftover is a claim with devices of a member that has no node.
type leftover struct {
	pod   *v1.Pod
	claim *resourcev1.ResourceClaim
	// special: kube-scheduler itself made the claim, for extended resources.
	special bool
}

// giveBack has what is left over from earlier bindings given back, aside. One round for a gang is under way at a time, and the gang
// is not planned meanwhile: a member that got its node would lose its devices there.
func (p *Plugin) giveBack(ctx context.Context, key types.NamespacedName, r gangcache.Snapshot, infos []fwk.NodeInfo) {
	manager := p.handle.SharedDRAManager()
	if manager == nil || !slices.ContainsFunc(r.Members, func(m gangcache.Member) bool { return m.State == gangcache.Pending && hasClaims(manager, m.Pod) }) {
		return
	}
	over, free := p.giving.begin(key)
	if !free {
		return
	}
	nodes, logger := nodesOf(infos), klog.FromContext(ctx)
	go func() {
		defer func() {
			if over() {
				p.wake(logger, key)
			}
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		left := leftovers(manager, r, nodes)
		workqueue.ParallelizeUntil(ctx, giveBackAtOnce, len(left), func(i int) { p.giveBackOne(ctx, key, left[i]) })
	}()
}

// givesBackFirst says whether the gang is to be planned later, because devices are given back, or so many members are tied by
// what they have that all of it is given back first.
func (p *Plugin) givesBackFirst(ctx context.Context, key types.NamespacedName, r gangcache.Snapshot, infos []fwk.NodeInfo) bool {
	if p.giving.waits(key) {
		return true
	}
	manager := p.handle.SharedDRAManager()
	if manager == nil || !slices.ContainsFunc(r.Members, func(m gangcache.Member) bool {
		return m.State == gangcache.Pending && len(m.Pod.Spec.ResourceClaims) > 0
	}) ||
		len(tied(manager, r, nodesOf(infos))) <= mostTied {
		return false
	}
	p.giveBack(ctx, key, r, infos)
	time.AfterFunc(lookAgain, func() { p.wake(klog.FromContext(ctx), key) })
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

// begin begins a round for a gang, if none is under way. over ends it, and says whether the gang was to be planned meanwhile.
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

// waits says whether a round for a gang is under way, which is then to be planned after it.
func (g *rounds) waits(key types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, busy := g.of[key]
	if busy {
		g.of[key] = true
	}
	return busy
}

// hasClaims says whether a pod gets anything by claims.
func hasClaims(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || asksClass(manager, pod)
}

// asksClass says whether a pod asks for an extended resource that a device class serves.
func asksClass(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if isDevice(string(name)) && manager.DeviceClassResolver().GetDeviceClass(name) != nil {
					return true
				}
			}
		}
	}
	return false
}

// tied lists what pending members have and cannot use on some node, less what members with a node have as well.
func tied(manager fwk.SharedDRAManager, r gangcache.Snapshot, nodes []*v1.Node) []leftover {
	var all []leftover
	used := map[types.UID]bool{}
	for _, m := range r.Members {
		claims := theirs(manager, m.Pod)
		for _, claim := range claims {
			if m.State != gangcache.Pending {
				used[claim.UID] = true
			} else if isLeft(claim, m.Pod) && manager.ResourceClaims().GetPendingAllocation(claim.UID) == nil && ties(claim.Status.Allocation, nodes) {
				all = append(all, leftover{pod: m.Pod, claim: claim})
			}
		}
	}
	return slices.DeleteFunc(all, func(l leftover) bool { return used[l.claim.UID] })
}

// leftovers are what ties pending members, and claims that were made for their extended resources.
func leftovers(manager fwk.SharedDRAManager, r gangcache.Snapshot, nodes []*v1.Node) []leftover {
	all, owners := tied(manager, r, nodes), map[types.UID]*v1.Pod{}
	for _, m := range r.Members {
		if m.State == gangcache.Pending && asksClass(manager, m.Pod) {
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
			all = append(all, leftover{pod: owners[owner.UID], claim: claim, special: true})
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

// isLeft says whether a claim has devices, and nobody but the pod may use them.
func isLeft(claim *resourcev1.ResourceClaim, pod *v1.Pod) bool {
	by := claim.Status.ReservedFor
	return claim.Status.Allocation != nil && claim.DeletionTimestamp == nil && (len(by) == 0 || (len(by) == 1 && by[0].UID == pod.UID))
}

// ties says whether devices keep a pod off a node, or may not become ready.
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

func (p *Plugin) giveBackOne(ctx context.Context, key types.NamespacedName, l leftover) {
	logger, done := klog.FromContext(ctx), false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if !p.gangs.IsPending(key, l.pod.UID) {
			return nil // it is on its way to a node, with them
		}
		err := p.release(ctx, l)
		if apierrors.IsConflict(err) {
			now, readErr := p.handle.ClientSet().ResourceV1().ResourceClaims(l.claim.Namespace).Get(ctx, l.claim.Name, metav1.GetOptions{})
			if readErr != nil || now.UID != l.claim.UID || (!l.special && !isLeft(now, l.pod)) {
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
		logger.Info("Giving devices of a claim back; will be tried again when the gang is refused again", "claim", klog.KObj(l.claim), "pod", klog.KObj(l.pod), "reason", err)
	case done:
		logger.V(2).Info("Devices of a claim are given back: its pod is on no node", "claim", klog.KObj(l.claim), "pod", klog.KObj(l.pod), "gang", key)
	}
}

// release does what the framework does with claims of a pod that found no node.
func (p *Plugin) release(ctx context.Context, l leftover) error {
	api := p.handle.ClientSet().ResourceV1().ResourceClaims(l.claim.Namespace)
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
			return fmt.Errorf("taking its finalizer away: %w", err)
		}
	}
	if err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	return nil
}

// looked says whether the framework's plugin for claims looked at the pod in this cycle: its PostFilter fails without that.
func looked(state fwk.CycleState) bool {
	_, err := state.Read(names.DynamicResources)
	return err == nil
}
