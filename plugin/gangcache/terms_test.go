package gangcache

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// What the pods ask for wins over what their group does.
func TestAsks(t *testing.T) {
	of := Terms{Topology: gang.Topology{Required: "tier"}}
	p := asking(memberPod("g", 0, 1, 1), v1alpha1.AnnotationSpares, "1")
	if got, err := Asks(p, of); err != nil || got.Required != "tier" || got.Spares != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	p.Annotations[v1alpha1.AnnotationTopologyPreferred] = "rack"
	if got, err := Asks(p, of); err != nil || got.Required != "" || got.Preferred != "rack" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestGangSize(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for value, want := range map[string]int{"2": 2, "0": 0, "-1": 0, "x": 0, "": 0} {
		pod.Annotations = map[string]string{v1alpha1.AnnotationGangSize: value}
		size, err := gangSize(pod)
		if size != want || (err == nil) != (want > 0) {
			t.Errorf("size of %q is %d, %v", value, size, err)
		}
	}
	pod.Annotations = nil
	if _, err := gangSize(pod); err == nil {
		t.Error("a missing size is not an error")
	}
}
