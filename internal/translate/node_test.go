package translate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestWordsOnANode(t *testing.T) {
	node := func(values map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: values}}
	}
	if h, err := NodeHealth(node(nil)); h != nil || err != nil {
		t.Errorf("a node that says nothing: %v, %v", h, err)
	}
	if h, err := NodeHealth(node(map[string]string{v1alpha1.AnnotationHealth: `{"action":"Evict","cause":"GPULost"}`})); err != nil || h == nil || h.Action != v1alpha1.ActionEvict || h.Cause != "GPULost" {
		t.Errorf("health: %+v, %v", h, err)
	}
	if o, err := NodeOutage(node(map[string]string{v1alpha1.AnnotationOutage: `{"decision":"Hold","cause":"GPULost"}`})); err != nil || o == nil || o.Decision != v1alpha1.DecisionHold {
		t.Errorf("outage: %+v, %v", o, err)
	}
	if _, err := NodeOutage(node(map[string]string{v1alpha1.AnnotationOutage: `{`})); err == nil || !strings.Contains(err.Error(), "of node n1 cannot be read") {
		t.Errorf("an outage that is no JSON: %v", err)
	}
}
