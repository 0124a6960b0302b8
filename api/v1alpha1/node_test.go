package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWordsOnANode(t *testing.T) {
	node := func(values map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: values}}
	}
	if h, err := NodeHealthOf(node(nil)); h != nil || err != nil {
		t.Errorf("a node that says nothing: %v, %v", h, err)
	}
	if h, err := NodeHealthOf(node(map[string]string{AnnotationHealth: `{"action":"Evict","cause":"GPULost"}`})); err != nil || h == nil ||
		h.Action != ActionEvict ||
		h.Cause != "GPULost" {
		t.Errorf("health: %+v, %v", h, err)
	}
	if o, err := NodeOutageOf(node(map[string]string{AnnotationOutage: `{"decision":"Hold","cause":"GPULost"}`})); err != nil || o == nil || o.Decision != DecisionHold {
		t.Errorf("outage: %+v, %v", o, err)
	}
	if _, err := NodeOutageOf(node(map[string]string{AnnotationOutage: `{`})); err == nil || !strings.Contains(err.Error(), "of node n1 cannot be read") {
		t.Errorf("an outage that is no JSON: %v", err)
	}
}
