package preemption

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// singlePods records, for pods of no gang, the pods that were evicted for them. Its lock is a leaf.
type singlePods struct {
	mu sync.Mutex
	of map[types.UID]*nomination
}

// nomination is the room on a node that evicted pods free.
type nomination struct {
	node    string
	evicted []types.UID
	until   time.Time
	// evicting: the evictions are being sent.
	evicting bool
}

func (l *singlePods) keep(uid types.UID, one nomination, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.of, func(_ types.UID, p *nomination) bool { return now.After(p.until) })
	l.of[uid] = &one
}

// done records that all evictions were sent or given up.
func (l *singlePods) done(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.of[uid]; p != nil {
		p.evicting = false
	}
}

// awaits reports whether room for a pod is still to be freed: pods are being evicted for it or are still on the node. A replica that has
// just taken over checks only whether a pod of lower priority terminates on the nominated node.
func (l *singlePods) awaits(pod *v1.Pod, nodes []fwk.NodeInfo, priority int32, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	node, evicted := pod.Status.NominatedNodeName, []types.UID(nil)
	if p := l.of[pod.UID]; p != nil && !now.After(p.until) {
		if p.evicting {
			return true
		}
		node, evicted = p.node, p.evicted
	}
	return node != "" && slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool {
		return n.Node().Name == node && slices.ContainsFunc(n.GetPods(), func(info fwk.PodInfo) bool {
			on := info.GetPod()
			return slices.Contains(evicted, on.UID) || on.DeletionTimestamp != nil && corev1helpers.PodPriority(on) < priority
		})
	})
}

// MakeRoomForOne preempts for a pod of no gang, as for a gang of one: whole gangs and single pods, but not single members of gangs, as
// Kubernetes's own preemption would. It nominates the node, as Kubernetes does. MakeRoomForOne returns refusal if it preempts nothing.
func (p *Preemptor) MakeRoomForOne(ctx context.Context, pod *v1.Pod, refusal *fwk.Status) (*fwk.PostFilterResult, *fwk.Status) {
	nodes, err := p.config.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("listing the snapshot's nodes: %w", err))
	}
	priority := corev1helpers.PodPriority(pod)
	switch policy := pod.Spec.PreemptionPolicy; {
	case policy != nil && *policy == v1.PreemptNever, membership.TwoGroups(pod) != "", p.singlePods.awaits(pod, nodes, priority, time.Now()):
		return nil, refusal
	case !slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return hasBelow(n, priority) }):
		return framework.NewPostFilterResultWithNominatedNode(""), refusal
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: "pod " + pod.Name} // not a valid gang name
	logger, now := klog.FromContext(ctx), time.Now()
	again := func() { p.config.Activate(logger, []*v1.Pod{pod}) }
	if turn := p.reserveSearch(key, now, again); !turn {
		return nil, p.explained(key, refusal)
	}
	node, what, err := p.roomForOne(ctx, key, pod, nodes, again)
	p.searched(key, now, what, again)
	switch {
	case err != nil:
		return nil, fwk.AsStatus(fmt.Errorf("looking for room for pod %s/%s: %w", pod.Namespace, pod.Name, err))
	case what == foundRoom:
		delete(p.tried, key)
		return framework.NewPostFilterResultWithNominatedNode(node), fwk.NewStatus(fwk.Success)
	}
	return framework.NewPostFilterResultWithNominatedNode(""), p.explained(key, refusal)
}

// explained adds to a refusal why the last search found no room, if known.
func (p *Preemptor) explained(key types.NamespacedName, refusal *fwk.Status) *fwk.Status {
	if why := p.Why(key); why != "" {
		return fwk.NewStatus(refusal.Code(), why)
	}
	return refusal
}

// hasBelow reports whether a pod of lower priority is on a node.
func hasBelow(n fwk.NodeInfo, priority int32) bool {
	return slices.ContainsFunc(n.GetPods(), func(info fwk.PodInfo) bool { return corev1helpers.PodPriority(info.GetPod()) < priority })
}

// roomForOne selects victims and evicts them.
func (p *Preemptor) roomForOne(
	ctx context.Context,
	key types.NamespacedName,
	pod *v1.Pod,
	nodes []fwk.NodeInfo,
	again func(),
) (node string, what searchResult, err error) {
	p.config.Planner.Follow(nodes)
	priority, now := corev1helpers.PodPriority(pod), time.Now()
	b := &blocked{
		key:      key,
		nodes:    nodes,
		snapshot: gangcache.Snapshot{Size: 1, Members: []gangcache.Member{{Pod: pod, Role: planner.RoleOf(pod)}}},
	}
	s, err := p.newWhatIf(ctx, b, priority, now, below(priority))
	if err != nil || len(s.world.Units) == 0 {
		return "", foundNone, err
	}
	if ready := s.weigh(ctx, now); !ready {
		return "", unreadCheckpoints, nil
	}
	c, err := s.choose()
	if c.room == nil || len(c.room.assignments) != 1 {
		p.noteWhy(key, c.why)
		return "", foundNone, err
	}
	_, disturbed, err := p.Disturbed(ctx, nodes, key, pod, priority, s.taking(c.room.assignments))
	if err != nil {
		return "", foundNone, err
	}
	if disturbed { // it could not be placed, so preempting would be in vain
		p.rooms.KeepOut(pod)
		return "", foundNone, nil
	}
	at := c.room.assignments[0].Node
	d := s.departure(c.victims, c.room.assignments)
	klog.FromContext(ctx).Info("Preempting for a pod", "pod", klog.KObj(pod), "node", at, "leave", someOf(d.units), "pods", len(d.pods))
	if len(d.pods) > 0 {
		p.config.Metrics.preempted.Add(float64(len(d.pods)))
		e := eviction{
			beneficiary: "pod " + klog.KObj(pod).String(),
			priority:    priority,
			pods:        d.pods,
			until:       now.Add(d.grace + p.config.Args.NominationTimeout.Duration),
			stands: func() bool {
				mine, err := p.config.Pods.Pods(pod.Namespace).Get(pod.Name)
				return err == nil && mine.UID == pod.UID && mine.Spec.NodeName == ""
			},
		}
		one := nomination{node: at, until: e.until, evicting: true}
		for _, pod := range d.pods {
			one.evicted = append(one.evicted, pod.UID)
		}
		p.singlePods.keep(pod.UID, one, now)
		go func() {
			p.evict(context.WithoutCancel(ctx), e)
			p.singlePods.done(pod.UID)
			again()
		}()
	}
	return at, foundRoom, nil
}
