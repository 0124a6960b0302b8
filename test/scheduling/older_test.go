package scheduling

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// TestOlderAPI runs the scheduler on an API server that serves the APIs and feature gates of Kubernetes 1.34. The server's program is that
// of 1.37.
func TestOlderAPI(t *testing.T) {
	s := newStage(t, nodes, "--arg=kube-apiserver=--emulated-version=1.34")
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.APIResources {
		if r.Name == "devicetaintrules" {
			t.Fatal("the API server serves what 1.34 did not: this test shows nothing")
		}
	}
	s.asServiceAccount()
	s.start()
	first := s.ranked("first", nodes-1, nil)
	s.until("a gang to be placed", s.bound(first...))
	second := s.ranked("second", 2, nil)
	s.until("the next to hear why it is not", s.saying(second[0], "2 pods wanted, 1 fit"))
	s.priorities()
	third := s.ranked("third", 2, func(p *corev1.Pod) { p.Spec.PriorityClassName = high })
	s.until("a gang of higher priority to be placed", s.bound(third...))
}
