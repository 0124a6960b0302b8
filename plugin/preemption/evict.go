package preemption

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/internal/membership"
)

const (
	// evictAtOnce is how many evictions are under way at a time; evictAgain is how long one waits that a disruption
	// budget refused.
	evictAtOnce = 32
	evictAgain  = time.Second
)

// eviction is a batch of pods that are told to leave.
type eviction struct {
	// whom they make room for, such as "gang ns/train".
	whom string
	// priority is theirs: who is not of a lower one leaves because it stayed too long in room that is reserved.
	priority int32
	pods     []*v1.Pod
	// until is when it is given up; stands says whether room is still wanted.
	until  time.Time
	stands func() bool
}

// evict tells pods to leave, with their own grace. A gang of ours is drained by that as when somebody drains its nodes.
// Each pod is told once, in one batch; one whose eviction is refused is told again only while the room is wanted: once
// it is found claims.Elsewhere, or nobody needs it, nobody leaves for it any more.
func (p *Preemptor) evict(ctx context.Context, e eviction) {
	ctx, cancel := context.WithDeadline(ctx, e.until)
	defer cancel()
	logger := klog.FromContext(ctx)
	told := map[types.NamespacedName]bool{}
	for _, pod := range e.pods {
		unit, member := membership.GroupOf(pod)
		with := ", with all of its gang"
		if !member {
			unit, with = types.NamespacedName{Namespace: pod.Namespace, Name: "pod " + pod.Name}, ""
		}
		if !told[unit] { // once for a whole gang
			told[unit] = true
			why := " of higher priority"
			if corev1helpers.PodPriority(pod) >= e.priority {
				why = ", in whose reserved room it is beyond its declared run time"
			}
			p.config.Framework.EventRecorder().WithLogger(logger).Eventf(pod, nil, v1.EventTypeNormal, reasonPreempted, "Preempting", "makes room for %s%s%s", e.whom, why, with)
		}
	}
	left, batch := e.pods, true
	err := wait.PollUntilContextCancel(ctx, evictAgain, true, func(ctx context.Context) (bool, error) {
		if batch || e.stands() {
			left, batch = p.tell(ctx, e.whom, left), false
			return len(left) == 0, nil
		}
		logger.Info("Evictions that were refused are not tried again: the room is not wanted any more", "for", e.whom, "pods", len(left))
		return true, nil
	})
	if err != nil {
		logger.Error(err, "Pods that were to make room were not evicted in time", "for", e.whom, "pods", len(left), "first", klog.KObj(left[0]))
	}
}

// tell tells each pod to leave and returns those whose eviction was refused.
func (p *Preemptor) tell(ctx context.Context, whom string, pods []*v1.Pod) (refused []*v1.Pod) {
	logger := klog.FromContext(ctx)
	no := make([]bool, len(pods))
	workqueue.ParallelizeUntil(ctx, evictAtOnce, len(pods), func(i int) {
		pod := pods[i]
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
		err := p.config.Framework.ClientSet().PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
		if no[i] = err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err); no[i] {
			logger.V(2).Info("Evicting a pod that makes room; will be tried again", "for", whom, "pod", klog.KObj(pod), "reason", err)
		}
	})
	for i, pod := range pods {
		if no[i] {
			refused = append(refused, pod)
		}
	}
	return refused
}

// reasonPreempted is kube-scheduler's own word for it.
const reasonPreempted = "Preempted"
