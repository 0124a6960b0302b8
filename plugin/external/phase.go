package external

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// head is the number of a group's pods by phase.
type head struct{ Exist, OnNodes, Running, Succeeded, Failed int32 }

// headOf counts a group's pods.
func headOf(pods []*corev1.Pod) head {
	h := head{Exist: int32(len(pods))}
	for _, p := range pods {
		switch p.Status.Phase {
		case corev1.PodRunning:
			h.Running++
		case corev1.PodSucceeded:
			h.Succeeded++
		case corev1.PodFailed:
			h.Failed++
		}
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodFailed {
			h.OnNodes++
		}
	}
	return h
}

// coschedulingStatus is the status that the controller of scheduler-plugins would settle on, so that the two do not overwrite each other
// where both run. Finished and Failed are final.
func coschedulingStatus(pg *coscheduling.PodGroup, pods []*corev1.Pod) coscheduling.PodGroupStatus {
	s, least, h := pg.Status, pg.Spec.MinMember, headOf(pods)
	if s.Phase == coscheduling.PodGroupFinished || s.Phase == coscheduling.PodGroupFailed {
		return s
	}
	if h.Exist < least {
		if s.Phase != "" && s.Phase != coscheduling.PodGroupPending {
			s.Running, s.Succeeded, s.Failed = h.Running, h.Succeeded, h.Failed
		}
		s.Phase = coscheduling.PodGroupPending
		return s
	}
	if s.Phase == "" || s.Phase == coscheduling.PodGroupPending {
		if owners := ownersOf(pods); owners != "" {
			s.OccupiedBy = owners
		}
	}
	s.Running, s.Succeeded, s.Failed = h.Running, h.Succeeded, h.Failed
	switch {
	case h.Succeeded >= least:
		s.Phase = coscheduling.PodGroupFinished
	case h.Failed > 0 && h.Failed+h.Running+h.Succeeded >= least:
		s.Phase = coscheduling.PodGroupFailed
	case h.Succeeded+h.Running >= least:
		s.Phase = coscheduling.PodGroupRunning
	default:
		s.Phase = coscheduling.PodGroupScheduling
	}
	return s
}

// ownersOf returns the owners of the first pod, as NAMESPACE/NAME.
func ownersOf(pods []*corev1.Pod) string {
	if len(pods) == 0 {
		return ""
	}
	var refs []string
	for _, ref := range pods[0].OwnerReferences {
		refs = append(refs, pods[0].Namespace+"/"+ref.Name)
	}
	slices.Sort(refs)
	return strings.Join(refs, ",")
}

// volcanoStatus is the status of Volcano's PodGroup: phase and counts as Volcano's scheduler sets them, and this scheduler's answer as a
// condition. A group of this scheduler is in the queue at once: it has no queues. Where transition IDs show that Volcano's scheduler writes
// the group as well, only the condition is written, so that the two do not overwrite each other.
func volcanoStatus(
	pg *vcscheduling.PodGroup,
	pods []*corev1.Pod,
	answer *v1alpha1.PlacementStatus,
	now metav1.Time,
) vcscheduling.PodGroupStatus {
	s, h := *pg.Status.DeepCopy(), headOf(pods)
	if slices.ContainsFunc(s.Conditions, ofVolcano) {
		if s.Phase == "" || s.Phase == vcscheduling.PodGroupPending {
			s.Phase = vcscheduling.PodGroupInqueue
		}
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c vcscheduling.PodGroupCondition) bool { return !ofVolcano(c) })
		return s
	}
	s.Running, s.Succeeded, s.Failed = h.Running, h.Succeeded, h.Failed
	least := max(1, pg.Spec.MinMember)
	ended := h.Succeeded + h.Failed
	switch {
	case h.Exist > 0 && ended == h.Exist && h.Exist >= least:
		s.Phase = vcscheduling.PodGroupCompleted
	case h.OnNodes >= least:
		s.Phase = vcscheduling.PodGroupRunning
	case h.Running > 0:
		s.Phase = vcscheduling.PodGroupUnknown
	default:
		s.Phase = vcscheduling.PodGroupInqueue
	}
	if answer == nil {
		return s
	}
	c := vcscheduling.PodGroupCondition{
		Type:    vcscheduling.PodGroupScheduled,
		Status:  corev1.ConditionTrue,
		Reason:  "tasks in gang are ready to be scheduled",
		Message: answer.Message,
	}
	drop := vcscheduling.PodGroupUnschedulableType
	if !answer.Placed {
		c.Type, drop, c.Reason = vcscheduling.PodGroupUnschedulableType, vcscheduling.PodGroupScheduled, vcscheduling.NotEnoughResourcesReason
		if answer.Reason == v1alpha1.ReasonWaitingForMembers || answer.Reason == v1alpha1.ReasonMemberLost {
			c.Reason = vcscheduling.NotEnoughPodsReason
		}
	}
	s.Conditions = slices.DeleteFunc(s.Conditions, func(have vcscheduling.PodGroupCondition) bool { return have.Type == drop })
	at := slices.IndexFunc(s.Conditions, func(have vcscheduling.PodGroupCondition) bool { return have.Type == c.Type })
	switch {
	case at < 0:
		c.LastTransitionTime = now
		s.Conditions = append(s.Conditions, c)
	case s.Conditions[at].Reason != c.Reason || s.Conditions[at].Message != c.Message || s.Conditions[at].Status != c.Status:
		c.LastTransitionTime = now
		s.Conditions[at] = c
	}
	return s
}

// ofVolcano reports whether Volcano's scheduler wrote a condition: its conditions carry a session's ID.
func ofVolcano(c vcscheduling.PodGroupCondition) bool { return c.TransitionID != "" }

// nativeCondition returns the condition of Kubernetes's own PodGroup: whether it was ever placed, which stays true. ok is false if the
// condition need not change.
func nativeCondition(pg *schedulingv1beta1.PodGroup, answer *v1alpha1.PlacementStatus, now metav1.Time) (c metav1.Condition, ok bool) {
	if answer == nil {
		return c, false
	}
	c = metav1.Condition{
		Type:               schedulingv1beta1.PodGroupInitiallyScheduled,
		Status:             metav1.ConditionTrue,
		Reason:             "Scheduled",
		Message:            answer.Message,
		ObservedGeneration: pg.Generation,
		LastTransitionTime: now,
	}
	if !answer.Placed {
		c.Status, c.Reason = metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonUnschedulable
	}
	for _, have := range pg.Status.Conditions {
		switch {
		case have.Type != c.Type:
		case have.Status == metav1.ConditionTrue:
			return c, false
		case have.Status == c.Status:
			c.LastTransitionTime = have.LastTransitionTime
			return c, have.Message != c.Message || have.Reason != c.Reason
		}
	}
	return c, true
}
