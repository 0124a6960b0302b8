package webhook

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestPodsOnTheirNodesNetwork: pods on their node's network reach the coordinator by the addresses of its Service, and use only the ports
// that their user allows.
func TestPodsOnTheirNodesNetwork(t *testing.T) {
	dual := config
	dual.CoordinatorAddresses = []string{"10.96.0.7", "fd00::7"}
	j := admitted(t, job(t, annotate(v1alpha1.AnnotationMasterPort, "29500-29531"), podSpec(func(s *corev1.PodSpec) { s.HostNetwork = true })))
	out := MutatePod(t.Context(), podOf(j), dual)
	if len(out.Errors) > 0 || len(out.Warnings) > 0 {
		t.Fatal(said(out))
	}
	again := dual
	again.CoordinatorAddresses = []string{"10.96.0.8"} // the Service was created again between two calls for one pod
	if out = MutatePod(t.Context(), out.Object, again); len(out.Errors) > 0 {
		t.Fatal(said(out))
	}
	env := out.Object.Spec.Containers[0].Env
	for name, want := range map[string]string{"HOLDFAST_COORDINATOR": config.Coordinator, "HOLDFAST_COORDINATOR_ADDRESSES": "10.96.0.7,fd00::7", "HOLDFAST_MASTER_PORT": "29500-29531", "HOLDFAST_NETWORK": "host"} {
		if !slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == name && e.Value == want }) {
			t.Errorf("%s is not %s: %v", name, want, env)
		}
	}
	if !slices.ContainsFunc(env, func(e corev1.EnvVar) bool {
		return e.Name == "HOLDFAST_SLOT" && e.ValueFrom.FieldRef.FieldPath == "metadata.annotations['holdfast.dev/gang-slot']"
	}) {
		t.Errorf("the pod's slot is missing: %v", env)
	}
}
