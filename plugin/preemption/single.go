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

	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// lone keeps for pods of no gang who has been told to leave for them. Its lock is a leaf.
type lone struct {
	mu sync.Mutex
	of map[types.UID]*promise
}

// promise is the room on a node that pods are told to leave.
type promise struct {
	node  string
	told  []types.UID
	until time.Time
	// batch: they are being told.
	batch bool
}

func (l *lone) keep(uid types.UID, one promise, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.of, func(_ types.UID, p *promise) bool { return now.After(p.until) })
	l.of[uid] = &one
}

// done notes that all have been told, or that it was given up.
func (l *lone) done(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.of[uid]; p != nil {
		p.batch = false
	}
}

// awaits says whether room for a pod is still to come: some are being told to leave for it, or are on the node yet; or, which
// is all that a replica knows that has just taken over, somebody of lower priority leaves the node that is nominated for it.
func (l *lone) awaits(pod *v1.Pod, nodes []fwk.NodeInfo, priority int32, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	node, told := pod.Status.NominatedNodeName, []types.UID(nil)
	if p := l.of[pod.UID]; p != nil && !now.After(p.until) {
		if p.batch {
			return true
		}
		node, told = p.node, p.told
	}
	return node != "" && slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool {
		return n.Node().Name == node && slices.ContainsFunc(n.GetPods(), func(info fwk.PodInfo) bool {
			on := info.GetPod()
			return slices.Contains(told, on.UID) || on.DeletionTimestamp != nil && corev1helpers.PodPriority(on) < priority
		})
	})
}

// MakeRoomForOne has others leave for a pod of no gang, as for a gang of one: whole gangs and single pods, not members of
// gangs, which Kubernetes's own preemption would take. The node is nominated for it, as Kubernetes does.
// no is the answer where nobody leaves.
func (p *Preemptor) MakeRoomForOne(ctx context.Context, pod *v1.Pod, no *fwk.Status) (*fwk.PostFilterResult, *fwk.Status) {
	nodes, err := p.config.Framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("listing the snapshot's nodes: %w", err))
	}
	priority := corev1helpers.PodPriority(pod)
	switch policy := pod.Spec.PreemptionPolicy; {
	case policy != nil && *policy == v1.PreemptNever, membership.TwoGroups(pod) != "", p.lone.awaits(pod, nodes, priority, time.Now()):
		return nil, no
	case !slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return hasBelow(n, priority) }):
		return framework.NewPostFilterResultWithNominatedNode(""), no
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: "pod " + pod.Name} // no gang is named so
	logger, now := klog.FromContext(ctx), time.Now()
	again := func() { p.config.Activate(logger, []*v1.Pod{pod}) }
	if !p.turnToSearch(key, now, again) {
		return nil, no
	}
	node, what, err := p.roomForOne(ctx, key, pod, nodes, again)
	p.searched(key, now, what, again)
	switch {
	case err != nil:
		return nil, fwk.AsStatus(fmt.Errorf("looking for room for pod %s/%s: %w", pod.Namespace, pod.Name, err))
	case what == something:
		delete(p.tried, key)
		return framework.NewPostFilterResultWithNominatedNode(node), fwk.NewStatus(fwk.Success)
	}
	return framework.NewPostFilterResultWithNominatedNode(""), no
}

// hasBelow says whether a pod of lower priority is on a node.
func hasBelow(n fwk.NodeInfo, priority int32) bool {
	return slices.ContainsFunc(n.GetPods(), func(info fwk.PodInfo) bool { return corev1helpers.PodPriority(info.GetPod()) < priority })
}

// roomForOne chooses who leaves, and tells them.
func (p *Preemptor) roomForOne(ctx context.Context, key types.NamespacedName, pod *v1.Pod, nodes []fwk.NodeInfo, again func()) (node string, what found, err error) {
	p.config.Planner.Follow(nodes)
	priority, now := corev1helpers.PodPriority(pod), time.Now()
	b := &blocked{key: key, nodes: nodes, roster: gangcache.Snapshot{Size: 1, Members: []gangcache.Member{{Pod: pod, Role: planner.RoleOf(pod)}}}}
	s, err := p.survey(ctx, b, priority, now, below(priority))
	if err != nil || len(s.world.Units) == 0 {
		return "", nothing, err
	}
	if !s.weighed(ctx, now) {
		return "", unread, nil
	}
	choice, ok := yield.Choose(s.world, s.gang)
	if !ok {
		return "", nothing, nil
	}
	room, err := s.check(choice.Victims)
	if room == nil || len(room.seats) != 1 {
		return "", nothing, err
	}
	at := room.seats[0].Node
	d := s.departure(choice, room.seats)
	klog.FromContext(ctx).Info("Others make room for a pod", "pod", klog.KObj(pod), "node", at, "leave", someOf(d.units), "pods", len(d.pods))
	if len(d.pods) > 0 {
		p.config.Metrics.preempted.Add(float64(len(d.pods)))
		e := eviction{whom: "pod " + klog.KObj(pod).String(), priority: priority, pods: d.pods, until: now.Add(d.grace + p.config.Args.ClaimPatience.Duration), stands: func() bool {
			mine, err := p.config.Pods.Pods(pod.Namespace).Get(pod.Name)
			return err == nil && mine.UID == pod.UID && mine.Spec.NodeName == ""
		}}
		one := promise{node: at, until: e.until, batch: true}
		for _, pod := range d.pods {
			one.told = append(one.told, pod.UID)
		}
		p.lone.keep(pod.UID, one, now)
		go func() {
			p.evict(context.WithoutCancel(ctx), e)
			p.lone.done(pod.UID)
			again()
		}()
	}
	return at, something, nil
}
