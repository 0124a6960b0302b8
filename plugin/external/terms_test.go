package external

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/gangcache"
)

func TestTermsOfGroups(t *testing.T) {
	vc := func(s vcscheduling.PodGroupSpec) (gangcache.Terms, error) {
		return volcanoTerms(&vcscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: s})
	}
	tier := func(mode vcscheduling.NetworkTopologyMode, tier *int, name string) vcscheduling.PodGroupSpec {
		return vcscheduling.PodGroupSpec{
			MinMember:       2,
			NetworkTopology: &vcscheduling.NetworkTopologySpec{Mode: mode, HighestTierAllowed: tier, HighestTierName: name},
		}
	}
	native := func(s schedulingv1beta1.PodGroupSpec) (gangcache.Terms, error) {
		return nativeTerms(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: s})
	}
	four := schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 4}}
	for name, c := range map[string]struct {
		got  func() (gangcache.Terms, error)
		want string
	}{
		"coscheduling": {func() (gangcache.Terms, error) {
			return coschedulingTerms(&coscheduling.PodGroup{Spec: coscheduling.PodGroupSpec{MinMember: 4, ScheduleTimeoutSeconds: ptr.To[int32](120),
				MinResources: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "nvidia.com/gpu": resource.MustParse("32")}}})
		}, "size 4 min 4 free map[cpu:1500 nvidia.com/gpu:32] patience 2m0s"},
		"more than can be counted": {func() (gangcache.Terms, error) {
			return coschedulingTerms(&coscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"},
				Spec: coscheduling.PodGroupSpec{MinResources: corev1.ResourceList{"cpu": resource.MustParse("9E")}}})
		}, "spec.minResources of g requests 9E of cpu, which no cluster has: write less, or remove it"},
		"nothing is one": {func() (gangcache.Terms, error) { return coschedulingTerms(&coscheduling.PodGroup{}) }, "size 1 min 1 free map[] patience 0s"},
		"our key on it": {func() (gangcache.Terms, error) {
			return coschedulingTerms(&coscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{
				Name:        "g",
				Annotations: map[string]string{v1alpha1.AnnotationSpares: "1"},
			}})
		}, "annotation holdfast.dev/spares on podgroups.scheduling.x-k8s.io/g is not read: write it on the pods of the group"},
		"tasks above the least": {func() (gangcache.Terms, error) {
			return vc(vcscheduling.PodGroupSpec{MinMember: 2, MinTaskMember: map[string]int32{"a": 1, "b": 4, "none": 0}, Queue: "default"})
		}, "size 5 min 5 tasks map[a:1 b:4]"},
		"queue": {func() (gangcache.Terms, error) {
			return vc(vcscheduling.PodGroupSpec{MinMember: 1, Queue: "q", PriorityClassName: "high"})
		}, "unheeded [queue q: this scheduler has no queues; pods are ordered by priority priorityClassName high"},
		"handed over": {func() (gangcache.Terms, error) {
			return volcanoTerms(&vcscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: map[string]string{v1alpha1.LabelGang: "g"}}})
		}, "podgroups.scheduling.volcano.sh/g belongs to gang g, which Volcano places: write schedulerName: volcano on the pod"},
		"subgroups": {func() (gangcache.Terms, error) {
			return vc(vcscheduling.PodGroupSpec{SubGroupPolicy: make([]vcscheduling.SubGroupPolicySpec, 1)})
		}, "spec.subGroupPolicy of podgroups.scheduling.volcano.sh/g is not supported"},
		"hard":      {func() (gangcache.Terms, error) { return vc(tier("hard", ptr.To(2), "")) }, "required topology.volcano.sh/tier-2 preferred "},
		"no mode":   {func() (gangcache.Terms, error) { return vc(tier("", ptr.To(2), "")) }, "required topology.volcano.sh/tier-2 preferred "},
		"soft":      {func() (gangcache.Terms, error) { return vc(tier("soft", nil, "leaf")) }, "required  preferred leaf"},
		"no tier":   {func() (gangcache.Terms, error) { return vc(tier("hard", nil, "")) }, "required  preferred "},
		"two tiers": {func() (gangcache.Terms, error) { return vc(tier("hard", ptr.To(1), "leaf")) }, "networkTopology has highestTierAllowed and highestTierName: remove one of them"},
		"native": {func() (gangcache.Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{
				SchedulingPolicy:      four,
				SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}},
			})
		}, "size 4 min 4 required rack"},
		"basic": {func() (gangcache.Terms, error) { return native(schedulingv1beta1.PodGroupSpec{}) }, "size 1 min 1"},
		"composite": {func() (gangcache.Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{ParentCompositePodGroupName: ptr.To("c")})
		}, "is part of composite group c"},
		"claims": {func() (gangcache.Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{SchedulingPolicy: four, ResourceClaims: make([]schedulingv1beta1.PodGroupResourceClaim, 1)})
		}, "shares resource claims among its pods"},
	} {
		got, err := c.got()
		said := fmt.Sprintf("size %d min %d tasks %v required %s preferred %s free %v patience %v unheeded %v", got.Size, got.Min, got.Tasks, got.Topology.Required, got.Topology.Preferred, got.Free, got.Timeout, got.Ignored)
		if err != nil {
			said = err.Error()
		}
		for _, part := range []string{" tasks map[]", " required  preferred "} { // values that are not set are not in the expected text
			if !strings.Contains(c.want, strings.TrimSpace(part)) && !strings.Contains(c.want, "required") {
				said = strings.Replace(said, part, " ", 1)
			}
		}
		if !holdsInOrder(said, c.want) {
			t.Errorf("%s: %s, want %s", name, said, c.want)
		}
	}
}

// holdsInOrder reports whether said contains all words of want, in their order.
func holdsInOrder(said, want string) bool {
	for _, word := range strings.Fields(want) {
		at := strings.Index(said, word)
		if at < 0 {
			return false
		}
		said = said[at+len(word):]
	}
	return true
}
