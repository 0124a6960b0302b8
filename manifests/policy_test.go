package manifests

import (
	"reflect"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestPoliciesNameAllFields: an expression cannot compare all fields but one, so a policy lists the fields. A field that a newer Kubernetes
// adds would otherwise not be checked.
func TestPoliciesNameAllFields(t *testing.T) {
	for _, c := range []struct {
		policy, at string
		of         any
	}{
		{"holdfast-controller-jobs", "spec", batchv1.JobSpec{}},
		{"holdfast-controller-jobs", "status", batchv1.JobStatus{}},
		{"holdfast-controller-nodes", "spec", corev1.NodeSpec{}},
		{"holdfast-controller-nodes", "status", corev1.NodeStatus{}},
		{"holdfast-node", "spec", corev1.NodeSpec{}},
		{"holdfast-node", "status", corev1.NodeStatus{}},
		{"holdfast-controller-webhook", "w", admissionregistrationv1.MutatingWebhook{}},
		{"holdfast-controller-webhook", "w.clientConfig", admissionregistrationv1.WebhookClientConfig{}},
	} {
		p := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, c.policy)
		var text strings.Builder
		for _, v := range p.Spec.Variables {
			text.WriteString(v.Expression + "\n")
		}
		for _, v := range p.Spec.Validations {
			text.WriteString(v.Expression + "\n")
		}
		of := reflect.TypeOf(c.of)
		for i := range of.NumField() {
			field, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if field == "caBundle" {
				continue // the field that the account may change
			}
			if !names(text.String(), c.at+"."+field) && !names(text.String(), c.at+".?"+field) {
				t.Errorf("policy %s says nothing of %s.%s", c.policy, c.at, field)
			}
		}
	}
}

// names reports whether the text has the path, and not only a path that begins with it.
func names(text, path string) bool {
	for rest := text; ; {
		at := strings.Index(rest, path)
		if at < 0 {
			return false
		}
		rest = rest[at+len(path):]
		if rest == "" || !strings.ContainsAny(rest[:1], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			return true
		}
	}
}
