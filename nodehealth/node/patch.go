package node

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
)

// object is the part of a Node that is read. Taints stay raw JSON, so that those of others are written back unchanged, with all fields of a
// newer API.
type object struct {
	Metadata struct {
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Taints []json.RawMessage `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

type condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
	LastHeartbeatTime  metav1.Time `json:"lastHeartbeatTime"`
}

// metadataPatch returns the one patch of annotation and taint, or nil if both are up to date. It replaces the whole list of taints, so it
// is valid only for the version that was read.
func metadataPatch(n *object, v nodehealth.Verdict) ([]byte, error) {
	text, err := json.Marshal(Health(v))
	if err != nil {
		return nil, err
	}
	taints, changed, err := withTaint(n.Spec.Taints, v)
	if err != nil {
		return nil, err
	}
	if !changed && n.Metadata.Annotations[v1alpha1.AnnotationHealth] == string(text) {
		return nil, nil
	}
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": n.Metadata.ResourceVersion,
		"annotations":     map[string]string{v1alpha1.AnnotationHealth: string(text)},
	}}
	if changed {
		patch["spec"] = map[string]any{"taints": taints}
	}
	return json.Marshal(patch)
}

// withTaint returns the list of taints with the daemon's as the verdict requires; all others are unchanged and in their order.
func withTaint(have []json.RawMessage, v nodehealth.Verdict) (out []json.RawMessage, changed bool, err error) {
	wanted := v.Action >= nodehealth.Exclude
	want := taint{Key: v1alpha1.TaintUnhealthy, Value: string(v.Cause), Effect: "NoSchedule"}
	if v.Soft {
		want.Effect = "PreferNoSchedule"
	}
	stands := false
	for _, raw := range have {
		var t taint
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, false, err
		}
		switch {
		case t.Key != v1alpha1.TaintUnhealthy:
			out = append(out, raw)
		case wanted && t == want && !stands:
			stands = true
			out = append(out, raw)
		default:
			changed = true
		}
	}
	if wanted && !stands {
		raw, err := json.Marshal(want)
		if err != nil {
			return nil, false, err
		}
		return append(out, raw), true, nil
	}
	return out, changed, nil
}

// conditionPatch returns a patch of the daemon's condition alone, merged by its type, or nil if it is up to date.
func conditionPatch(n *object, v nodehealth.Verdict, now time.Time) ([]byte, error) {
	want := conditionOf(v, metav1.NewTime(now))
	for _, c := range n.Status.Conditions {
		if c.Type != want.Type {
			continue
		}
		if c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message {
			return nil, nil
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
	}
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": []condition{want}}})
}

func conditionOf(v nodehealth.Verdict, now metav1.Time) condition {
	c := condition{
		Type:               v1alpha1.ConditionHealthy,
		Status:             "True",
		Reason:             "Healthy",
		Message:            v.Message,
		LastTransitionTime: now,
		LastHeartbeatTime:  now,
	}
	switch {
	case v.Action != nodehealth.None:
		c.Status, c.Reason = "False", string(v.Cause)
		c.Message = v.Message + ". " + v.Next
	case !v.Known:
		c.Status, c.Reason = "Unknown", "NothingToAsk"
	}
	if v.Released != "" {
		c.Reason = v1alpha1.CauseGPUsReleased // repair tools wait for this reason
	}
	return c
}
