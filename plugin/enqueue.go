package plugin

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/internal/membership"
)

// PreEnqueue does nothing where plugin GateName holds members back.
func (p *Plugin) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	if p.gated() {
		return nil
	}
	return p.queueGate(ctx, pod)
}

// queueGate holds a member back until its whole gang exists; then it admits only the leader, until a plan stands. It runs under the queue's
// lock.
func (p *Plugin) queueGate(ctx context.Context, pod *v1.Pod) *fwk.Status {
	key, ok := p.gangOf(pod)
	if !ok {
		return nil
	}
	// The queue may call this before the plugin's own handler has seen the pod.
	seen := p.gangs.Enqueued(key, pod, func() bool {
		now, err := p.pods.Pods(pod.Namespace).Get(pod.Name)
		return err == nil && now.UID == pod.UID && now.DeletionTimestamp == nil && isMember(now) && !membership.Ended(now)
	})
	if seen.Completed {
		go p.wake(klog.FromContext(ctx), key)
	}
	p.status.eventually(key)
	if wait := p.gangs.Admit(key, pod.UID); wait != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, wait)
	}
	if key, ok := p.gangs.QueueKey(key, pod.UID); ok {
		p.queueKeys.note(pod.UID, key)
	}
	return nil
}

// EventsToRegister returns the events that may make a refused gang fit. They wake only the leader, which plans for all.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	nodeChanges := fwk.Add | fwk.UpdateNodeAllocatable |
		fwk.UpdateNodeLabel | fwk.UpdateNodeTaint | fwk.UpdateNodeCondition | fwk.UpdateNodeAnnotation
	events := []fwk.ClusterEvent{
		{Resource: fwk.Node, ActionType: nodeChanges},
		{Resource: fwk.AssignedPod, ActionType: fwk.Add | fwk.Delete | fwk.UpdatePodLabel | fwk.UpdatePodScaleDown},
		{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update},
		{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update},
		{Resource: fwk.StorageClass, ActionType: fwk.Add | fwk.Update},
		{Resource: fwk.CSINode, ActionType: fwk.Add | fwk.Update},
		{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete},
		{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update},
		{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update},
	}
	var hints []fwk.ClusterEventWithHint
	for _, e := range events {
		hints = append(hints, fwk.ClusterEventWithHint{Event: e, QueueingHintFn: p.leaderOnly})
	}
	return append(hints, releases), nil
}

// releases are label changes by which a pod that was gated or refused as a member is no longer a member.
var releases = fwk.ClusterEventWithHint{
	Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel},
	QueueingHintFn: func(_ klog.Logger, _ *v1.Pod, _, now any) (fwk.QueueingHint, error) {
		if pod, ok := now.(*v1.Pod); ok && isMember(pod) {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	},
}

// leaderOnly wakes a pod only if it leads. It runs under the queue's lock, after the scheduler's cache was updated.
func (p *Plugin) leaderOnly(logger klog.Logger, pod *v1.Pod, _, _ any) (fwk.QueueingHint, error) {
	key, ok := p.gangOf(pod)
	if !ok {
		return fwk.Queue, nil
	}
	leads, hurry := p.gangs.ClaimLead(key, pod.UID, time.Now())
	if !leads {
		return fwk.QueueSkip, nil
	}
	if hurry {
		go p.wake(logger, key)
	}
	return fwk.Queue, nil
}

// SignPod makes the scheduler reuse no result of one cycle for another member: each has its own planned node.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if _, ok := p.gangOf(pod); ok {
		return nil, fwk.NewStatus(fwk.Unschedulable, "members of a gang follow a plan")
	}
	return nil, nil
}
