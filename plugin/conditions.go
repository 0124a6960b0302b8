package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/external"
)

const (
	// conditionsPerSecond and conditionsAtOnce bound the writes of conditions, of all gangs together.
	conditionsPerSecond = 200
	conditionsAtOnce    = 500
	// rewordEvery is the shortest interval between two messages for the same reason: autoscalers read only the reason.
	rewordEvery = time.Minute
	// arriving is how long after a group's newest pod its pods are not marked as waiting for others: these are usually being created, and a
	// write per pod would compete with that.
	arriving = 5 * time.Second
	// conditionWriters is the number of concurrent writers.
	conditionWriters = 8
	// reasonPreempting is the reason of members for which other pods are being preempted.
	reasonPreempting = "Preempting"
	// reasonUndecided is the reason of a member that was tried before there is an answer for its gang.
	reasonUndecided = "Undecided"
)

// waiting is why members of a gang have no node.
type waiting struct {
	pods            []*v1.Pod
	reason, message string
}

// settles returns how long the members' reason may still be that others are being created; zero: it is not, or not any more.
func (w waiting) settles(now time.Time) (left time.Duration) {
	if w.reason != gang.WaitingForMembers {
		return 0
	}
	for _, pod := range w.pods {
		left = max(left, pod.CreationTimestamp.Add(arriving).Sub(now))
	}
	return left
}

// memberConditions writes the gang's answer into condition PodScheduled of all members without a node: kube-scheduler writes only that of
// the pod that it tries, and autoscalers read the condition of every pod. It runs beside scheduling cycles. Each write requires the pod's
// resource version, so that a pod that got its node meanwhile is not changed.
type memberConditions struct {
	client  kubernetes.Interface
	waiting func(types.NamespacedName) (waiting, bool)
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	limiter *rate.Limiter

	mu sync.Mutex
	// marks by gang, while members wait. Guarded by mu; the content of one belongs to the worker that has its gang.
	marks map[types.NamespacedName]*marks
}

// marks are what was written on a gang's members.
type marks struct {
	// reworded is when their message last changed.
	reworded time.Time
	// from is each pod as it was at the last write: until the informer shows another version, that write is on its way.
	from map[types.UID]*v1.Pod
}

func newMemberConditions(client kubernetes.Interface, waits func(types.NamespacedName) (waiting, bool)) *memberConditions {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryLast)
	return &memberConditions{client: client, waiting: waits, queue: workqueue.NewTypedRateLimitingQueue(limiter),
		limiter: rate.NewLimiter(conditionsPerSecond, conditionsAtOnce), marks: map[types.NamespacedName]*marks{}}
}

// soon queues a gang's members for writing after a delay. It does not block; a nil receiver writes nothing.
func (c *memberConditions) soon(key types.NamespacedName) {
	if c != nil {
		c.queue.AddAfter(key, gather)
	}
}

// run writes until the context ends.
func (c *memberConditions) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	for range conditionWriters {
		go func() {
			for c.next(ctx) {
			}
		}()
	}
}

func (c *memberConditions) next(ctx context.Context) bool {
	key, stop := c.queue.Get()
	if stop {
		return false
	}
	defer c.queue.Done(key)
	again, err := c.write(ctx, key, time.Now())
	switch {
	case err != nil:
		klog.FromContext(ctx).V(3).Info("Writing why members of a gang wait failed; retrying", "gang", key, "reason", err)
		c.queue.AddRateLimited(key)
		return true
	case again > 0:
		c.queue.AddAfter(key, again)
	}
	c.queue.Forget(key)
	return true
}

// write updates the members' conditions. again, where set, is the delay until the next write.
func (c *memberConditions) write(ctx context.Context, key types.NamespacedName, now time.Time) (again time.Duration, err error) {
	want, ok := c.waiting(key)
	if !ok {
		c.mu.Lock()
		delete(c.marks, key)
		c.mu.Unlock()
		return 0, nil
	}
	m, left := c.of(key, now), want.settles(now)
	changed := false
	for _, pod := range want.pods {
		_, have := podutil.GetPodCondition(&pod.Status, v1.PodScheduled)
		same := have != nil && have.Status == v1.ConditionFalse && have.Reason == want.reason
		switch unmarked := have == nil || have.Reason != v1.PodReasonUnschedulable; {
		case m.from[pod.UID] == pod:
			again = max(again, gather)
			continue
		case same && have.Message == want.message, unmarked && want.reason != v1.PodReasonUnschedulable && !external.Is(key):
			continue
		case unmarked && left > 0:
			again = max(again, left)
			continue
		case same && now.Sub(m.reworded) < rewordEvery:
			again = rewordEvery - now.Sub(m.reworded)
			continue
		case same:
			changed = true
		}
		if err := c.limiter.Wait(ctx); err != nil {
			return 0, err
		}
		if err := c.patch(ctx, pod, want); err != nil {
			return 0, err
		}
		m.from[pod.UID] = pod
	}
	if changed {
		m.reworded = now
	}
	return again, nil
}

func (c *memberConditions) of(key types.NamespacedName, now time.Time) *marks {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.marks[key]
	if m == nil {
		m = &marks{reworded: now, from: map[types.UID]*v1.Pod{}}
		c.marks[key] = m
	}
	return m
}

func (c *memberConditions) patch(ctx context.Context, pod *v1.Pod, want waiting) error {
	status := pod.Status.DeepCopy()
	podutil.UpdatePodCondition(
		status,
		&v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: want.reason, Message: want.message,
			ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, v1.PodScheduled)},
	)
	_, condition := podutil.GetPodCondition(status, v1.PodScheduled)
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []v1.PodCondition{*condition}},
	})
	if err != nil {
		return fmt.Errorf("encoding the condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if _, err := c.client.CoreV1().Pods(pod.Namespace).Patch(
		ctx,
		pod.Name,
		types.StrategicMergePatchType,
		text,
		metav1.PatchOptions{},
		"status",
	); err != nil {
		return fmt.Errorf("writing the condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// waits returns the members of a gang that wait for a node, and why. The reason is Unschedulable only where more nodes would help: not if
// members are missing, pods are being preempted for the gang, or no kind of node has what it requests.
func (p *Plugin) waits(key types.NamespacedName) (waiting, bool) {
	pods, why, ok := p.gangs.Waiting(key)
	if !ok || len(pods) == 0 {
		return waiting{}, false
	}
	w := waiting{pods: pods, reason: why.Reason, message: why.Message}
	if h, held := p.reservations.Get(key); held && !h.Reserved {
		w.reason = reasonPreempting
	} else if why.Reason == gang.InsufficientNodes && !why.NoNodeHelps {
		w.reason = v1.PodReasonUnschedulable
	}
	return w, true
}

// noNodes refuses a gang for which kube-scheduler runs no plugin, because the cluster has no node.
func (p *Plugin) noNodes(ctx context.Context, pod *v1.Pod) {
	key, ok := p.gangOf(pod)
	if !ok {
		return
	}
	snapshot, missing := p.gangs.PlanInput(key)
	if missing != nil {
		return
	}
	refusal := gang.NoNodes(len(snapshot.Members))
	if undo := p.gangs.Refuse(key, &refusal); len(undo) > 0 {
		go p.rollBack(context.WithoutCancel(ctx), key, undo, refusal.Message)
	}
	p.status.soon(key)
}

// memberStatus makes kube-scheduler write the gang's condition on the member that it tried.
type memberStatus struct {
	fwk.APICacher
	p *Plugin
}

// PatchPodStatus writes synchronously if kube-scheduler has no cache for API calls.
func (s memberStatus) PatchPodStatus(pod *v1.Pod, conditions []*v1.PodCondition, nominating *fwk.NominatingInfo) (<-chan error, error) {
	for i, one := range conditions {
		key, member := s.p.gangOf(pod)
		if !member || one.Type != v1.PodScheduled || one.Reason != v1.PodReasonUnschedulable {
			continue
		}
		own := *one
		w, decided := s.p.waits(key)
		_, last := podutil.GetPodCondition(&pod.Status, v1.PodScheduled)
		switch {
		case decided:
			own.Reason, own.Message = w.reason, w.message
		case last != nil && last.Status == v1.ConditionFalse: // the last answer stands, as on the other members
			own.Reason, own.Message = last.Reason, last.Message
		default:
			own.Reason = reasonUndecided
		}
		conditions[i] = &own
	}
	if s.APICacher != nil {
		return s.APICacher.PatchPodStatus(pod, conditions, nominating)
	}
	status, changed := pod.Status.DeepCopy(), false
	for _, one := range conditions {
		changed = podutil.UpdatePodCondition(status, one) || changed
	}
	if nominating.Mode() == fwk.ModeOverride && status.NominatedNodeName != nominating.NominatedNodeName {
		status.NominatedNodeName, changed = nominating.NominatedNodeName, true
	}
	if !changed {
		return nil, nil
	}
	return nil, util.PatchPodStatus(context.Background(), s.p.handle.ClientSet(), pod.Name, pod.Namespace, &pod.Status, status)
}
