package membership

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNodeEnds: a pod that fails by itself, or that no node would admit, is no matter of its node.
func TestNodeEnds(t *testing.T) {
	for reason, want := range map[string]struct{ rejects, ends bool }{
		"OutOfcpu":                 {true, true},
		"OutOfnvidia.com/gpu":      {true, true},
		"UnexpectedAdmissionError": {true, true},
		"NodeAffinity":             {true, true},
		"Evicted":                  {false, true},
		"NodeShutdown":             {false, true},
		"Terminated":               {false, true},
		"DeadlineExceeded":         {false, false},
		"SysctlForbidden":          {false, false},
		"AppArmor":                 {false, false},
		"":                         {false, false},
	} {
		if Rejects(reason) != want.rejects || NodeEnds(corev1.PodStatus{Reason: reason}) != want.ends {
			t.Errorf("%q: rejects %v, ends %v", reason, Rejects(reason), NodeEnds(corev1.PodStatus{Reason: reason}))
		}
	}
}

// TestNodeEndsEvictedPods: a running pod that its kubelet evicts was in the node's way, or exceeded a limit of its own.
func TestNodeEndsEvictedPods(t *testing.T) {
	ran := corev1.PodStatus{Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{Name: "trainer"}}}
	if NodeEnds(ran) {
		t.Error("a pod over its own limit is released")
	}
	ran.Conditions = []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet},
	}
	if !NodeEnds(ran) {
		t.Error("a pod that was evicted for its node's sake is not released")
	}
	ran.Conditions[0].Status = corev1.ConditionFalse
	if NodeEnds(ran) {
		t.Error("the condition is False")
	}
}
