package status

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

func TestPlacementStatus(t *testing.T) {
	r := gang.Refusal{
		Reason:   gang.InsufficientNodes,
		Message:  "m",
		Wanted:   2,
		Fits:     1,
		Excluded: map[gang.Cause][]string{{Name: "nvidia.com/gpu"}: {"a", "b"}, {Kind: gang.Cordoned}: {"c"}},
	}
	s := Refused(r)
	if want := map[string]int32{"insufficient nvidia.com/gpu": 2, "cordoned": 1}; !reflect.DeepEqual(s.Excluded, want) {
		t.Errorf("excluded %v, want %v", s.Excluded, want)
	}
	later := s
	later.ObservedAt = metav1.NewMicroTime(time.Unix(9, 0))
	if !SamePlacement(s, later) {
		t.Error("the time of an answer makes it another one")
	}
	for name, other := range map[string]v1alpha1.PlacementStatus{
		"count":  Refused(gang.Refusal{Reason: r.Reason, Message: r.Message, Wanted: 2, Fits: 1}),
		"placed": Placed([]string{"a"}),
	} {
		if SamePlacement(s, other) {
			t.Errorf("%s: another answer is taken for the same", name)
		}
	}
}

// The reasons of the core gang are those of the API.
func TestReasonsAreTheVocabulary(t *testing.T) {
	for core, word := range map[string]string{
		gang.WaitingForMembers: v1alpha1.ReasonWaitingForMembers,
		gang.MemberLost:        v1alpha1.ReasonMemberLost,
		gang.InsufficientNodes: v1alpha1.ReasonInsufficientNodes,
	} {
		if core != word {
			t.Errorf("the core says %q, the vocabulary %q", core, word)
		}
	}
}
