package plugin

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// inspect sees to what no event tells: plans that members do not follow, for instance because another plugin
// gates them; gangs that hold nodes and never become whole; members that are missing because they ended well.
func (p *Plugin) inspect(ctx context.Context) { p.inspectAt(ctx, time.Now()) }

func (p *Plugin) inspectAt(ctx context.Context, now time.Time) {
	logger := klog.FromContext(ctx)
	p.noteStuck(logger, now)
	p.lapseHolds(logger, now)
	for _, key := range p.gangs.Overdue(now.Add(-p.args.PlanPatience.Duration)) {
		p.abandon(logger, key, "members did not follow the plan in time")
	}
	for _, key := range p.gangs.Idle(now.Add(-inspection)) {
		p.wake(logger, key)
	}
	for _, l := range p.gangs.Lapsed(now, p.args.FormingPatience.Duration) {
		logger.Info("A gang that never was whole is taken back", "gang", l.Key, "reason", l.Why, "pods", len(l.Undo))
		p.undo(ctx, l.Key, l.Undo, l.Why)
		p.status.soon(l.Key)
	}
	for _, q := range p.gangs.Unexplained() {
		ended, err := p.endedWell(ctx, q.Key, q.Member)
		if err != nil {
			logger.Info("Asking who of a gang ended well; will be tried again", "gang", q.Key, "reason", err)
			continue
		}
		if p.gangs.Explain(q, ended).Completed {
			p.wake(logger, q.Key)
		}
		p.status.soon(q.Key)
	}
}

// selectorOf is what the pods of a gang have in common that the API server can look for; their namespace, where that is
// no label.
func selectorOf(key types.NamespacedName) string {
	api, name, foreign := membership.Foreign(key)
	switch {
	case !foreign:
		return labels.SelectorFromSet(labels.Set{v1alpha1.LabelGang: key.Name}).String()
	case api == membership.Coscheduling:
		return labels.SelectorFromSet(labels.Set{coscheduling.PodGroupLabel: name}).String()
	}
	return ""
}

// endedWell lists the pods of a gang that ended well, of the same owner as a member that there is: the informer
// of a scheduler does not know pods that have ended.
func (p *Plugin) endedWell(ctx context.Context, key types.NamespacedName, member *v1.Pod) ([]*v1.Pod, error) {
	list, err := p.handle.ClientSet().CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: selectorOf(key),
		FieldSelector: fields.OneTermEqualSelector("status.phase", string(v1.PodSucceeded)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing pods of gang %s: %w", key, err)
	}
	owner := metav1.GetControllerOf(member)
	var ended []*v1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if of, ok := membership.GroupOf(pod); !ok || of != key || pod.Status.Phase != v1.PodSucceeded || pod.DeletionTimestamp != nil {
			continue
		}
		if by := metav1.GetControllerOf(pod); (by == nil) == (owner == nil) && (by != nil || !isForeign(key)) && (by == nil || by.UID == owner.UID) {
			ended = append(ended, pod)
		}
	}
	return ended, nil
}
