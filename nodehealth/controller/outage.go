package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// isGPU reports whether an extended resource is GPUs, or parts or replicas of them. It does not find devices of other drivers, and those
// that claims request (DRA): their nodes are judged from when a pod of a gang is there.
func isGPU(name string) bool {
	_, kind, ok := strings.Cut(name, "/")
	return ok && (kind == "gpu" || kind == "gpu.shared") || slices.ContainsFunc([]string{
		"nvidia.com/mig-", "gpu.intel.com/", "habana.ai/gaudi", "huawei.com/Ascend", "aws.amazon.com/neuron", "google.com/tpu",
	}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// maxMessage bounds an outage's message, in bytes.
const maxMessage = 512

// budgetNode reads a Node: verdict, failure domain (the first of the labels that it has) and present decision. The result is valid even
// with an error: an unreadable verdict counts as unchanged.
func budgetNode(node *corev1.Node, domainLabels []string) (budget.Node, error) {
	n := budget.Node{Name: node.Name}
	for _, key := range domainLabels {
		if value := node.Labels[key]; value != "" {
			n.Domain = key + "=" + value
			break
		}
	}
	for name, quantity := range node.Status.Capacity {
		if isGPU(string(name)) {
			n.GPUs += int(quantity.Value())
		}
	}
	var err error
	if n.Stands, err = outageOf(node); err != nil {
		n.Stands = budget.Outage{} // it is written again
	}
	verdict, unread := nodeVerdict(node)
	if unread != nil {
		verdict, err = unchanged(n.Stands), unread
	}
	n.Verdict = verdict
	request, unread := nodeRequest(node)
	if unread != nil {
		request, err = unchangedRequest(n.Stands), unread
	}
	n.Request = request
	suspicions, unread := nodeSuspicions(node)
	if unread != nil {
		suspicions, err = unchangedSuspicions(n.Stands), unread
	}
	n.Suspicions = suspicions
	if len(n.Suspicions) > 0 { // passes decide about suspicions alone
		if n.Passes, unread = passesOf(node); unread != nil {
			err = unread
		}
	}
	return n, err
}

// nodeVerdict returns the daemon's verdict; without an annotation nothing is wrong.
func nodeVerdict(node *corev1.Node) (budget.Verdict, error) {
	text, ok := node.Annotations[v1alpha1.AnnotationHealth]
	if !ok {
		return budget.Verdict{}, nil
	}
	path := field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationHealth)
	var h v1alpha1.NodeHealth
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return budget.Verdict{}, field.Invalid(path, text, fmt.Sprintf("is not a verdict (%v): remove the annotation, and the node's daemon writes it again", err))
	}
	action, ok := nodehealth.ParseAction(string(h.Action))
	if !ok {
		return budget.Verdict{}, field.NotSupported(path.Child("action"), h.Action,
			[]v1alpha1.NodeAction{v1alpha1.ActionNone, v1alpha1.ActionWatch, v1alpha1.ActionExclude, v1alpha1.ActionEvict})
	}
	return budget.Verdict{Action: action, Cause: h.Cause, Message: h.Message, Since: h.Since.Time}, nil
}

// nodeRequest returns the user's request to move pods off the node.
func nodeRequest(node *corev1.Node) (budget.Request, error) {
	e, err := v1alpha1.NodeEvictionOf(node)
	if e == nil || err != nil {
		return budget.Request{}, err
	}
	r := budget.Request{At: e.At.Time, Until: e.Until.Time, Now: e.Now, Message: "requested"}
	if e.By != "" {
		r.Message += " by " + e.By
	}
	r.Message += " until " + e.Until.UTC().Format(time.RFC3339)
	if e.Pod != nil {
		r.Pod, r.Message = e.Pod.UID, r.Message+" for pod "+e.Pod.Namespace+"/"+e.Pod.Name
	}
	r.Message += ": " + e.Reason
	return r, nil
}

// unchangedRequest returns a request that leads to the present decision.
func unchangedRequest(o budget.Outage) budget.Request {
	if o.Cause != budget.CauseByHand {
		return budget.Request{}
	}
	return budget.Request{At: o.Since, Message: o.Message, Pod: o.Pod}
}

// unchangedSuspicions returns a suspicion that leads to the present decision, for its usual time.
func unchangedSuspicions(o budget.Outage) []budget.Suspicion {
	if o.Cause != budget.CauseSuspected {
		return nil
	}
	return []budget.Suspicion{{At: o.Since, Until: o.Since.Add(provenFor)}}
}

// unchanged returns a verdict that leads to the present decision.
func unchanged(o budget.Outage) budget.Verdict {
	v := budget.Verdict{Cause: o.Cause, Since: o.Since}
	switch {
	case o.Cause == budget.CauseUnreachable, o.Cause == budget.CauseByHand, o.Cause == budget.CauseSuspected: // not from a daemon
	case o.Outcome == budget.Exclude:
		v.Action = nodehealth.Exclude
	case o.Outcome != budget.None:
		v.Action = nodehealth.Evict
	}
	return v
}

// outageOf returns the decision on a Node.
func outageOf(node *corev1.Node) (budget.Outage, error) {
	text, ok := node.Annotations[v1alpha1.AnnotationOutage]
	if !ok {
		return budget.Outage{}, nil
	}
	path := field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationOutage)
	var o v1alpha1.NodeOutage
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return budget.Outage{}, field.Invalid(path, text, fmt.Sprintf("is not a decision (%v): remove the annotation", err))
	}
	outcome := budget.Outcome(o.Decision)
	switch outcome {
	case budget.Evict, budget.Hold, budget.Exclude:
	default:
		return budget.Outage{}, field.NotSupported(path.Child("decision"), o.Decision,
			[]v1alpha1.NodeDecision{v1alpha1.DecisionEvict, v1alpha1.DecisionHold, v1alpha1.DecisionExclude})
	}
	return budget.Outage{
		Outcome: outcome,
		Cause:   o.Cause,
		Reason:  budget.Reason(o.Reason),
		Message: o.Message,
		Since:   o.Since.UTC(),
		Dead:    o.Dead,
		Idle:    o.Idle,
		Pod:     o.Pod, Requested: o.Requested,
	}, nil
}

// hasOutage reports whether the Node has a decision, or a part of one.
func hasOutage(node *corev1.Node) bool {
	_, ok := node.Annotations[v1alpha1.AnnotationOutage]
	return ok || slices.ContainsFunc(node.Spec.Taints, isOutage)
}

func isOutage(t corev1.Taint) bool { return t.Key == v1alpha1.TaintOutage }

// putOutage writes a decision on a Node, annotation and taint, and reports whether that changed anything. It does not change other
// annotations and taints.
func putOutage(node *corev1.Node, o budget.Outage) (bool, error) {
	if o.Outcome == budget.None {
		changed := hasOutage(node)
		delete(node.Annotations, v1alpha1.AnnotationOutage)
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isOutage)
		return changed, nil
	}
	text, err := json.Marshal(v1alpha1.NodeOutage{
		Decision: v1alpha1.NodeDecision(o.Outcome), Cause: o.Cause, Reason: string(o.Reason),
		Message: cut(o.Message, maxMessage), Since: metav1.NewMicroTime(o.Since), Dead: o.Dead, Idle: o.Idle, Pod: o.Pod, Requested: o.Requested,
	})
	if err != nil {
		return false, fmt.Errorf("writing the outage of Node %s: %w", node.Name, err)
	}
	taint := corev1.Taint{Key: v1alpha1.TaintOutage, Value: labelValue(o.Cause), Effect: outageEffect(node, o)}
	ours := 0
	for _, t := range node.Spec.Taints {
		if isOutage(t) {
			ours++
		}
	}
	at := slices.Index(node.Spec.Taints, taint)
	if at >= 0 && ours == 1 && node.Annotations[v1alpha1.AnnotationOutage] == string(text) {
		return false, nil
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[v1alpha1.AnnotationOutage] = string(text)
	if at < 0 || ours != 1 {
		node.Spec.Taints = append(slices.DeleteFunc(node.Spec.Taints, isOutage), taint)
	}
	return true, nil
}

// cut returns the beginning of a text, at most that many bytes.
func cut(text string, most int) string { return strings.ToValidUTF8(text[:min(len(text), most)], "") }

// outageEffect returns PreferNoSchedule while the node's daemon reports that pods repair the node, and no user wants new pods kept off it;
// else NoSchedule.
func outageEffect(node *corev1.Node, o budget.Outage) corev1.TaintEffect {
	if o.Requested || o.Dead || o.Cause == budget.CauseUnreachable {
		return corev1.TaintEffectNoSchedule
	}
	if h, err := v1alpha1.NodeHealthOf(node); err == nil && h != nil && h.Soft {
		return corev1.TaintEffectPreferNoSchedule
	}
	return corev1.TaintEffectNoSchedule
}

// labelValue makes a cause a valid value of a taint; the annotation has the unchanged cause.
func labelValue(cause string) string {
	if len(validation.IsValidLabelValue(cause)) == 0 {
		return cause
	}
	kept := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, cause)
	return kept[:min(len(kept), validation.LabelValueMaxLength)]
}

// gangPodOn returns the node of a pod of a gang; false: the pod has ended, was replaced, or has no node.
func gangPodOn(pod *corev1.Pod) (string, bool) {
	_, member := membership.GangOf(pod)
	return pod.Spec.NodeName, member && !membership.Ended(pod) && pod.Spec.NodeName != ""
}
