package coordinator

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
)

// TestAReplacedPodKeepsItsStream: it may tell its last words; a pod that changed otherwise may not.
func TestAReplacedPodKeepsItsStream(t *testing.T) {
	member := pod("team-a", "train", "0", "a0")
	api := fake.NewClientBuilder().WithObjects(member).Build()
	g := newGuard(api, api)
	peer := identity{key: keyOf(member), pod: elastic.Pod{UID: string(member.UID), Name: member.Name}}
	if err := g.still(t.Context(), peer); err != nil {
		t.Fatalf("a member is refused: %v", err)
	}
	member.Labels[v1alpha1.LabelReplaced] = "true"
	member.OwnerReferences = nil // the Job let go of it
	if err := api.Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	if err := g.still(t.Context(), peer); err != nil {
		t.Errorf("the stream of a replaced pod ends: %v", err)
	}
	delete(member.Labels, v1alpha1.LabelReplaced)
	if err := api.Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	if err := g.still(t.Context(), peer); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a pod without a job goes on: %v", err)
	}
}
