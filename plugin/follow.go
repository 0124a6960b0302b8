package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// plannedKey is the key under which PreFilter stores the planned node for the rest of the cycle.
const plannedKey fwk.StateKey = Name + "/planned"

// placeKey is the key under which PreFilter stores that node's topology domain.
const placeKey fwk.StateKey = Name + "/place"

type plannedNode string

func (n plannedNode) Clone() fwk.StateData { return n }

// causeNotReady is the cause of a node whose kubelet reports NotReady or has stopped reporting.
const causeNotReady = "NotReady"

// unhealthy reports whether Holdfast or the node's kubelet has marked the node unhealthy, and the cause. Tolerations do not count: a member
// there would be replaced at once or never start, and the gang would wait for it.
func unhealthy(node *v1.Node) (cause string, sick bool) {
	for _, t := range node.Spec.Taints {
		if t.Key == v1alpha1.TaintUnhealthy || (t.Key == v1alpha1.TaintOutage && !sick) {
			cause, sick = t.Value, true
		}
	}
	if !sick && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status != v1.ConditionTrue
	}) {
		return causeNotReady, true
	}
	return cause, sick
}

// Filter rejects every node but the planned one: the framework tries a nominated node before it applies PreFilter's result. It also rejects
// the planned one if Holdfast has excluded it since, or if a pod came that must not share it.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	key, ok := p.gangOf(pod)
	if !ok {
		if held := p.rejectSinglePod(pod, node); held != nil {
			return held
		}
		return p.preemption.FilterHeld(pod, node)
	}
	if data, err := state.Read(plannedKey); err == nil {
		if want, ok := data.(plannedNode); ok && string(want) == node.Node().Name {
			if cause, sick := p.rejections.Unhealthy(node.Node(), key.Namespace); sick {
				return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node is unhealthy ("+cause+")")
			}
			return p.rejectIntruded(key, pod, node)
		}
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) are not the planned one")
}

// PostFilter runs when a pod found no node. It never preempts for a single member, only for the whole gang. A member that could not follow
// its plan ends the plan. A pod of no gang is treated as a gang of one.
func (p *Plugin) PostFilter(
	ctx context.Context,
	state fwk.CycleState,
	pod *v1.Pod,
	_ fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	key, ok := p.gangOf(pod)
	if !ok {
		return p.preemption.MakeRoomForOne(ctx, pod, p.noRoom(state, pod))
	}
	if _, err := state.Read(plannedKey); err == nil {
		p.abandon(klog.FromContext(ctx), key, "a member found its planned node taken")
	} else {
		p.preemption.MakeRoom(ctx, key)
	}
	return nil, p.noRoom(state, pod)
}

// noRoom ends the framework's PostFilter chain, unless the pod's claims may hold devices on an unusable node: then the framework's plugin
// releases them.
func (p *Plugin) noRoom(state fwk.CycleState, pod *v1.Pod) *fwk.Status {
	if manager := p.handle.SharedDRAManager(); manager != nil && claims.Has(manager, pod) && claimsVisited(state) {
		return fwk.NewStatus(fwk.Unschedulable)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// Reserve checks again that the node is the planned one. A pod of no gang gets its node unless a gang that is ahead could use it.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	key, ok := p.gangOf(pod)
	if planner.IsNested(state) { // a dry-run reserve of a plan
		return nil
	}
	if !ok {
		return p.singleGivesWay(ctx, pod, node)
	}
	if follows := p.gangs.Reserve(key, pod, node); follows {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "the plan of the gang does not name node "+node+" for this pod any more")
}

// singleGivesWay rejects a pod of no gang while a gang that is ahead could use its node.
func (p *Plugin) singleGivesWay(ctx context.Context, pod *v1.Pod, node string) *fwk.Status {
	if p.planner.Attendant(pod) || !p.gangs.AnyWaiting() {
		return nil
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("listing the snapshot's nodes: %w", err))
	}
	logger, turn := klog.FromContext(ctx), gangcache.TurnOf(pod)
	taking := []planner.Taking{{Pod: pod, Node: node}}
	ahead, err := p.planner.GiveWay(ctx, nodes, turn, taking, func() { p.activate(logger, []*v1.Pod{pod}) })
	if err != nil {
		return fwk.AsStatus(err)
	}
	if ahead != nil {
		return fwk.NewStatus(fwk.Unschedulable, ahead.Why(turn))
	}
	why, err := p.keepOff(ctx, nodes, types.NamespacedName{}, pod, corev1helpers.PodPriority(pod), taking)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if why != "" {
		return fwk.NewStatus(fwk.Unschedulable, why)
	}
	return nil
}

// Unreserve runs when a reserved member could not be bound.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	key, ok := p.gangOf(pod)
	if !ok || planner.IsNested(state) {
		return
	}
	if undone := p.gangs.Unreserve(key, pod.UID); undone {
		p.abandon(klog.FromContext(ctx), key, "a member could not be bound to its planned node")
	}
}

const (
	// replanAfter is the delay of the second plan in a row after one that members could not follow. It doubles with each, up to
	// replanAtMost. The first has no delay.
	replanAfter  = 100 * time.Millisecond
	replanAtMost = 10 * time.Second
)

// abandon ends the gang's plan. The members without a node are planned again. If there is no room for them, an incomplete initial placement
// is rolled back.
func (p *Plugin) abandon(logger klog.Logger, key types.NamespacedName, why string) {
	released, inARow := p.gangs.GiveUp(key)
	logger.V(2).Info("Plan of a gang is given up", "gang", key, "reason", why, "released", len(released), "inARow", inARow)
	for _, pod := range released {
		p.handle.DeleteNominatedPodIfExists(pod)
	}
	if inARow == 0 {
		return
	}
	p.measures.givenUp.Inc()
	time.AfterFunc(replanDelay(inARow), func() { p.wake(logger, key) })
}

func replanDelay(inARow int) (delay time.Duration) {
	delays := wait.Backoff{Duration: replanAfter, Factor: 2, Steps: inARow, Cap: replanAtMost}
	for range inARow - 1 {
		delay = delays.Step()
	}
	return delay
}

// claimsVisited reports whether the framework's plugin for claims ran for the pod in this cycle. Without that its PostFilter fails.
func claimsVisited(state fwk.CycleState) bool {
	_, err := state.Read(names.DynamicResources)
	return err == nil
}
