package node

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
)

// Health converts the verdict to the annotation's type.
func Health(v nodehealth.Verdict) v1alpha1.NodeHealth {
	h := v1alpha1.NodeHealth{
		Action: v1alpha1.NodeAction(v.Action.String()), Cause: string(v.Cause), Message: v.Message, Next: v.Next,
		Since: metav1.NewMicroTime(v.Since), Devices: v.Devices, Boot: v.Boot, Settled: v.Settled,
		Released: v.Released, Soft: v.Soft,
	}
	for _, e := range v.Evidence {
		h.Evidence = append(
			h.Evidence,
			v1alpha1.NodeEvidence{At: metav1.NewMicroTime(e.At), Source: string(e.Source), Device: e.Device, Cause: string(e.Cause), Text: e.Text},
		)
	}
	h.Seen.GPUs = int32(v.Seen.GPUs)
	for id, links := range v.Seen.Links {
		if h.Seen.NVLinks == nil {
			h.Seen.NVLinks = map[string]int32{}
		}
		h.Seen.NVLinks[id] = int32(links)
	}
	return h
}

// Verdict parses an annotation. One that another version wrote may lack fields; one that is not valid JSON is an error.
func Verdict(annotation string) (nodehealth.Verdict, error) {
	var h v1alpha1.NodeHealth
	if err := json.Unmarshal([]byte(annotation), &h); err != nil {
		return nodehealth.Verdict{}, fmt.Errorf("reading annotation %s: %w", v1alpha1.AnnotationHealth, err)
	}
	v := nodehealth.Verdict{
		Cause:   nodehealth.Cause(h.Cause),
		Message: h.Message,
		Next:    h.Next,
		Since:   h.Since.Time,
		Devices: h.Devices,
		Boot:    h.Boot,
		Settled: h.Settled,
		Known:   true,
	}
	v.Action, _ = nodehealth.ParseAction(string(h.Action))
	v.Seen.GPUs = max(0, int(h.Seen.GPUs))
	for id, links := range h.Seen.NVLinks {
		if v.Seen.Links == nil {
			v.Seen.Links = map[string]int{}
		}
		v.Seen.Links[id] = int(links)
	}
	for _, e := range h.Evidence {
		v.Evidence = append(
			v.Evidence,
			nodehealth.Evidence{
				At:     e.At.Time,
				Source: nodehealth.Source(e.Source),
				Device: e.Device,
				Cause:  nodehealth.Cause(e.Cause),
				Text:   e.Text,
			},
		)
	}
	return v, nil
}
