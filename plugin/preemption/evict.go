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
	// evictAtOnce is the number of concurrent evictions; evictAgain is the delay before a refused eviction is retried.
	evictAtOnce = 32
	evictAgain  = time.Second
)

// eviction is a batch of pods to evict.
type eviction struct {
	// beneficiary is the gang or pod that gets the room, such as "gang ns/train".
	beneficiary string
	// priority is the gang's. A victim of the same priority was overdue in reserved room.
	priority int32
	pods     []*v1.Pod
	// until is when the eviction is given up; stands reports whether the room is still held.
	until  time.Time
	stands func() bool
}

// evict evicts pods with their own grace period. A Holdfast gang is drained by that, as by a node drain. Each pod is evicted once, in one
// batch; a refused eviction is retried only while the room is still held.
func (p *Preemptor) evict(ctx context.Context, e eviction) {
	ctx, cancel := context.WithDeadline(ctx, e.until)
	defer cancel()
	logger := klog.FromContext(ctx)
	announced := map[types.NamespacedName]bool{}
	for _, pod := range e.pods {
		unit, member := membership.GroupOf(pod)
		with := ", with all of its gang"
		if !member {
			unit, with = types.NamespacedName{Namespace: pod.Namespace, Name: "pod " + pod.Name}, ""
		}
		if !announced[unit] { // one event per gang
			announced[unit] = true
			why := " of higher priority"
			if corev1helpers.PodPriority(pod) >= e.priority {
				why = ", whose reserved room it occupies beyond its declared run time"
			}
			p.config.Framework.EventRecorder().
				WithLogger(logger).
				Eventf(pod, nil, v1.EventTypeNormal, reasonPreempted, "Preempting", "makes room for %s%s%s", e.beneficiary, why, with)
		}
	}
	left, batch := e.pods, true
	err := wait.PollUntilContextCancel(ctx, evictAgain, true, func(ctx context.Context) (bool, error) {
		if batch || e.stands() {
			left, batch = p.evictAll(ctx, e.beneficiary, left), false
			return len(left) == 0, nil
		}
		logger.Info("Refused evictions are not retried: the room is no longer needed", "for", e.beneficiary, "pods", len(left))
		return true, nil
	})
	if err != nil {
		logger.Error(err, "Preempted pods were not evicted in time", "for", e.beneficiary, "pods", len(left), "first", klog.KObj(left[0]))
	}
}

// evictAll evicts each pod and returns those whose eviction was refused.
func (p *Preemptor) evictAll(ctx context.Context, beneficiary string, pods []*v1.Pod) (refused []*v1.Pod) {
	logger := klog.FromContext(ctx)
	refusal := make([]bool, len(pods))
	workqueue.ParallelizeUntil(ctx, evictAtOnce, len(pods), func(i int) {
		pod := pods[i]
		eviction := &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
		}
		err := p.config.Framework.ClientSet().PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
		if refusal[i] = err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err); refusal[i] {
			logger.V(2).Info("Evicting a preempted pod; will be retried", "for", beneficiary, "pod", klog.KObj(pod), "reason", err)
		}
	})
	for i, pod := range pods {
		if refusal[i] {
			refused = append(refused, pod)
		}
	}
	return refused
}

// reasonPreempted is the reason that kube-scheduler uses.
const reasonPreempted = "Preempted"
