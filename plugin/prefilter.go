package plugin

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// outdatedAgain is the delay before a gang is planned again that was not planned because of outdated members.
const outdatedAgain = 100 * time.Millisecond

// PreFilter narrows a member to its planned node. If there is no plan, the leader first plans for the whole gang on this cycle's snapshot.
func (p *Plugin) PreFilter(
	ctx context.Context,
	state fwk.CycleState,
	pod *v1.Pod,
	nodes []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	key, ok := p.gangOf(pod)
	switch {
	case planner.IsNested(state):
		return nil, fwk.NewStatus(fwk.Skip)
	case !ok && membership.TwoGroups(pod) != "":
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, membership.TwoGroups(pod))
	case !ok && (p.planner.Attendant(pod) || !p.gangs.AnyExclusive() && !p.reservations.Any()):
		return nil, fwk.NewStatus(fwk.Skip)
	case !ok:
		return nil, nil // Filter rejects exclusive nodes
	}
	node, ok := p.gangs.PlannedNode(key, pod.UID)
	if !ok {
		message, err := p.plan(ctx, key, pod, nodes)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		if message != "" {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, message)
		}
		if node, ok = p.gangs.PlannedNode(key, pod.UID); !ok && p.gangs.IsOpen(key) {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "this pod does not fit beside the others of its gang, which are placed without it")
		} else if !ok {
			go p.wake(klog.FromContext(ctx), key)
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the gang changed while it was being planned")
		}
	}
	state.Write(plannedKey, plannedNode(node))
	if info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node); err == nil {
		state.Write(placeKey, plannedNode(p.planner.Location(info.Node())))
	}
	return &fwk.PreFilterResult{NodeNames: sets.New(node)}, nil
}

// PreFilterExtensions returns nil: a plan does not depend on single pods of a node.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// plan plans the whole gang and returns a refusal's message; "": a plan is open, unless the gang changed meanwhile.
func (p *Plugin) plan(ctx context.Context, key types.NamespacedName, pod *v1.Pod, nodes []fwk.NodeInfo) (message string, err error) {
	p.preemption.Unblock()
	snapshot, missing := p.gangs.PlanInput(key)
	if missing != nil {
		return missing.Message, nil
	}
	if leader := p.gangs.Leader(key); leader == nil || leader.UID != pod.UID {
		// The pod passed PreEnqueue while a plan was open that has ended since; the leader was woken.
		return "another pod plans for the gang", nil
	}
	if p.planner.Outdated(snapshot) { // the event that is missing wakes the leader, too
		time.AfterFunc(outdatedAgain, func() { p.wake(klog.FromContext(ctx), key) })
		return "the scheduler has not yet seen all changes of the gang's pods", nil
	}
	if later := p.claims.ReleaseFirst(ctx, key, snapshot, nodes); later {
		return claims.ReleasedFirst, nil
	}
	snapshot.Leader = pod.UID
	started := time.Now()
	chosen, placement, refusal, err := p.planner.First(ctx, nodes, snapshot)
	if err != nil {
		return "", err
	}
	took := time.Since(started)
	if refusal == nil {
		if refusal, err = p.giveWay(ctx, key, pod, chosen, placement, nodes); err != nil {
			return "", err
		}
	}
	if refusal == nil || !refusal.Undecided {
		p.planner.Decided(snapshot, refusal, took)
	}
	p.measures.planned(took, refusal)
	klog.FromContext(ctx).V(2).Info("Planned a gang", "gang", key, "members", len(snapshot.Members), "nodes", len(nodes), "placed", refusal == nil, "took", time.Since(started))
	if refusal != nil {
		if lacksClaimed(refusal) {
			refusal.Message += "; " + claims.NobodyLeaves
		}
		if h, ok := p.reservations.Get(key); ok {
			refusal.Message += "; " + h.Text()
		}
		blocked := *refusal
		if why := p.preemption.Why(key); why != "" && refusal.Reason == gang.InsufficientNodes {
			refusal.Message += "; " + why
		}
		undo := p.gangs.Refuse(key, refusal)
		if needed, _, wants := snapshot.Needed(); wants && refusal.Reason == gang.InsufficientNodes && len(undo) == 0 {
			p.preemption.Block(key, needed, nodes, blocked)
		}
		if len(undo) > 0 {
			go p.rollBack(context.WithoutCancel(ctx), key, undo, refusal.Message)
		}
		if refusal.Reason == gang.InsufficientNodes {
			p.claims.Release(ctx, key, snapshot, nodes)
		}
		p.status.soon(key)
		return refusal.Message, nil
	}
	return "", p.adopt(ctx, key, pod, chosen, placement)
}

// giveWay refuses a plan if a gang that is ahead could use its room.
func (p *Plugin) giveWay(
	ctx context.Context,
	key types.NamespacedName,
	leader *v1.Pod,
	of gangcache.Snapshot,
	placement gang.Placement,
	nodes []fwk.NodeInfo,
) (*gang.Refusal, error) {
	if placement.Placed == 0 {
		return nil, nil // adopt will not open the plan
	}
	at := placement.At()
	var taking []planner.Taking
	for _, m := range of.Members {
		if node := at[m.Pod.Name]; node != "" && m.State == gangcache.Pending {
			taking = append(taking, planner.Taking{Pod: m.Pod, Node: node})
		}
	}
	logger := klog.FromContext(ctx)
	ahead, err := p.planner.GiveWay(ctx, nodes, of.Turn, taking, func() { p.wake(logger, key) })
	if err != nil {
		return nil, err
	}
	r := &gang.Refusal{Reason: gang.WaitingForMembers, Undecided: true, Wanted: len(taking), Fits: len(taking), Nodes: len(nodes)}
	if ahead != nil {
		r.Message = ahead.Why(of.Turn)
		return r, nil
	}
	r.Message, err = p.keepOff(ctx, nodes, key, leader, of.With(at).Priority(), taking)
	if r.Message == "" || err != nil {
		return nil, err
	}
	return r, nil
}

// keepOff names the gang, if any, for which pods were preempted and that would not fit beside pods about to get nodes. Those pods are
// retried once that gang is placed.
func (p *Plugin) keepOff(ctx context.Context, nodes []fwk.NodeInfo, own types.NamespacedName, leader *v1.Pod, priority int32,
	taking []planner.Taking) (string, error) {
	if !p.reservations.Any() {
		return "", nil
	}
	of, disturbed, err := p.preemption.Disturbed(ctx, nodes, own, leader, priority, taking)
	if !disturbed || err != nil {
		return "", err
	}
	p.reservations.KeepOut(leader)
	return "pods are preempted for gang " + of.String() + ", which would not fit beside this", nil
}

// adopt opens the plan, nominates the other members' nodes, and activates the members.
func (p *Plugin) adopt(
	ctx context.Context,
	key types.NamespacedName,
	leader *v1.Pod,
	r gangcache.Snapshot,
	placement gang.Placement,
) error {
	logger := klog.FromContext(ctx)
	plan := make(map[types.UID]string, placement.Placed)
	var siblings []*v1.Pod
	at := placement.At()
	for _, m := range r.Members {
		node, placed := at[m.Pod.Name]
		if m.State != gangcache.Pending || !placed {
			continue
		}
		plan[m.Pod.UID] = node
		if m.Pod.UID != leader.UID {
			siblings = append(siblings, m.Pod)
		}
	}
	now := time.Now()
	if opened := p.gangs.Open(key, plan, now); !opened {
		return nil
	}
	p.preemption.Placed(logger, key)
	p.measures.waited.Observe(p.gangs.Waited(key, now).Seconds())
	for _, pod := range siblings {
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			p.abandon(logger, key, "a member's affinity cannot be read")
			return err
		}
		p.handle.AddNominatedPod(logger, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: plan[pod.UID]})
	}
	// A plan that was given up meanwhile removed only the nominations that existed then.
	for _, pod := range siblings {
		if node, ok := p.gangs.PlannedNode(key, pod.UID); !ok || node != plan[pod.UID] {
			p.handle.DeleteNominatedPodIfExists(pod)
		}
	}
	go func() {
		// The queue admits no other pod while it activates some: the first are bound meanwhile.
		for part := range slices.Chunk(siblings, activatedAtOnce) {
			p.activate(logger, part)
		}
	}()
	return nil
}

// activatedAtOnce is the number of members that are activated under one lock of the scheduling queue.
const activatedAtOnce = 256

// lacksClaimed reports whether a gang was refused for lack of devices of claims.
func lacksClaimed(refusal *gang.Refusal) bool {
	for c := range refusal.Excluded {
		if c.Kind == gang.Refused && c.Name == names.DynamicResources {
			return true
		}
	}
	return false
}
