package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/membership"
)

// View is what is known of a gang's pods and of the nodes that they are on.
type View struct {
	// Job is the gang's Job.
	Job types.UID
	// Members is the number of slots.
	Members int
	// Pods are all pods with the gang's label.
	Pods []corev1.Pod
	// Outages are the decisions in force, by node; Gone are nodes that do not exist any more.
	Outages map[string]v1alpha1.NodeOutage
	Gone    map[string]bool
	// Ends are the pods, by UID, that their nodes end without a deletion, and why.
	Ends map[types.UID]Ending
}

// Ending is why a node ends a pod.
type Ending struct {
	Cause, Message string
	// At is when the pod's agent received SIGTERM.
	At time.Time
}

// PendingReplacements returns the level: the pods that must be replaced, by slot. Only the pod that holds a slot counts: a pod that
// has a successor is not replaced again, and the Job handles one that has ended.
func PendingReplacements(v View) []elastic.Termination {
	var terminations []elastic.Termination
	for slot, pod := range membership.Holders(v.Job, v.Members, v.Pods) {
		if pod == nil {
			continue
		}
		if d, ok := v.termination(pod); ok {
			d.Slot, d.Pod, d.Name, d.Node = elastic.Slot(slot), string(pod.UID), pod.Name, pod.Spec.NodeName
			terminations = append(terminations, d)
		}
	}
	return terminations
}

// Suspended returns all pods of a suspended Job. With storage, their state is copied there before they are deleted, until the
// earliest deadline.
func Suspended(v View) []elastic.Termination {
	var terminations []elastic.Termination
	first := time.Time{}
	for slot, pod := range membership.Holders(v.Job, v.Members, v.Pods) {
		if pod == nil || membership.Ended(pod) {
			continue
		}
		d, _ := v.termination(pod)
		d.Slot, d.Pod, d.Name, d.Node = elastic.Slot(slot), string(pod.UID), pod.Name, pod.Spec.NodeName
		d.Cause, d.Message = v1alpha1.CauseJobSuspended, "the Job is suspended"
		if !d.Deadline.IsZero() && (first.IsZero() || d.Deadline.Before(first)) {
			first = d.Deadline
		}
		terminations = append(terminations, d)
	}
	for i := range terminations {
		terminations[i].Deadline = first
	}
	return terminations
}

// termination returns why a pod must terminate. The state of its node comes before who deletes the pod: it decides
// whether anything on the node can still be reached.
func (v View) termination(pod *corev1.Pod) (elastic.Termination, bool) {
	if membership.Ended(pod) {
		return elastic.Termination{}, false
	}
	node := pod.Spec.NodeName
	var o v1alpha1.NodeOutage
	if node != "" {
		o = v.Outages[node]
	}
	switch {
	case node != "" && v.Gone[node]:
		return elastic.Termination{Cause: v1alpha1.CauseNodeGone, Message: "node " + node + " does not exist any more", Dead: true}, true
	case o.Decision == v1alpha1.DecisionEvict && (o.Pod == "" || o.Pod == string(pod.UID)):
		return elastic.Termination{Cause: o.Cause, Message: o.Message, At: o.Since.Time, Dead: o.Dead}, true
	case pod.DeletionTimestamp != nil:
		at, deadline := deletion(pod)
		return elastic.Termination{Cause: v1alpha1.CauseDeleted, Message: deleter(pod), At: at, Deadline: deadline, Dead: o.Dead}, true
	case v.Ends[pod.UID].Cause != "":
		end := v.Ends[pod.UID]
		return elastic.Termination{Cause: end.Cause, Message: end.Message, At: end.At, Dead: o.Dead}, true
	}
	return elastic.Termination{}, false
}

// deletion returns when a pod was asked to terminate, and how long its state may be waited for (elastic/deadline.go).
func deletion(pod *corev1.Pod) (at, deadline time.Time) {
	kill := pod.DeletionTimestamp.Time
	grace := time.Duration(0)
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	return kill.Add(-grace), replacements.BeforeKill(kill, grace)
}

// deleter is what the pod says of who has it deleted.
func deleter(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return "the pod is being deleted"
}
