package translate

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	vctopology "volcano.sh/apis/pkg/apis/topology/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

func groupPod(labels, annotations map[string]string, native string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: labels, Annotations: annotations}}
	if native != "" {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(native)}
	}
	return p
}

func TestTermsOfGroups(t *testing.T) {
	vc := func(s vcscheduling.PodGroupSpec) (Terms, error) {
		return VolcanoTerms(&vcscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: s})
	}
	tier := func(mode vcscheduling.NetworkTopologyMode, tier *int, name string) vcscheduling.PodGroupSpec {
		return vcscheduling.PodGroupSpec{MinMember: 2, NetworkTopology: &vcscheduling.NetworkTopologySpec{Mode: mode, HighestTierAllowed: tier, HighestTierName: name}}
	}
	native := func(s schedulingv1beta1.PodGroupSpec) (Terms, error) {
		return NativeTerms(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: s})
	}
	four := schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 4}}
	for name, c := range map[string]struct {
		got  func() (Terms, error)
		want string
	}{
		"coscheduling": {func() (Terms, error) {
			return CoschedulingTerms(&coscheduling.PodGroup{Spec: coscheduling.PodGroupSpec{MinMember: 4, ScheduleTimeoutSeconds: ptr.To[int32](120),
				MinResources: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "nvidia.com/gpu": resource.MustParse("32")}}})
		}, "size 4 min 4 free map[cpu:1500 nvidia.com/gpu:32] patience 2m0s"},
		"nothing is one": {func() (Terms, error) { return CoschedulingTerms(&coscheduling.PodGroup{}) }, "size 1 min 1 free map[] patience 0s"},
		"our key on it": {func() (Terms, error) {
			return CoschedulingTerms(&coscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g", Annotations: map[string]string{v1alpha1.AnnotationSpares: "1"}}})
		}, "annotation holdfast.dev/spares on podgroups.scheduling.x-k8s.io/g is not read: write it on the pods of the group"},
		"tasks above the least": {func() (Terms, error) {
			return vc(vcscheduling.PodGroupSpec{MinMember: 2, MinTaskMember: map[string]int32{"a": 1, "b": 4, "none": 0}, Queue: "default"})
		}, "size 5 min 5 tasks map[a:1 b:4]"},
		"queue": {func() (Terms, error) {
			return vc(vcscheduling.PodGroupSpec{MinMember: 1, Queue: "q", PriorityClassName: "high"})
		}, "unheeded [queue q: this scheduler has no queues, pods go by their priority priorityClassName high"},
		"subgroups": {func() (Terms, error) {
			return vc(vcscheduling.PodGroupSpec{SubGroupPolicy: make([]vcscheduling.SubGroupPolicySpec, 1)})
		}, "spec.subGroupPolicy of podgroups.scheduling.volcano.sh/g is not known"},
		"hard":      {func() (Terms, error) { return vc(tier("hard", ptr.To(2), "")) }, "required topology.volcano.sh/tier-2 preferred "},
		"no mode":   {func() (Terms, error) { return vc(tier("", ptr.To(2), "")) }, "required topology.volcano.sh/tier-2 preferred "},
		"soft":      {func() (Terms, error) { return vc(tier("soft", nil, "leaf")) }, "required  preferred leaf"},
		"no tier":   {func() (Terms, error) { return vc(tier("hard", nil, "")) }, "required  preferred "},
		"two tiers": {func() (Terms, error) { return vc(tier("hard", ptr.To(1), "leaf")) }, "networkTopology has highestTierAllowed and highestTierName: leave one of them"},
		"native": {func() (Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{SchedulingPolicy: four, SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}})
		}, "size 4 min 4 required rack"},
		"basic": {func() (Terms, error) { return native(schedulingv1beta1.PodGroupSpec{}) }, "size 1 min 1"},
		"composite": {func() (Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{ParentCompositePodGroupName: ptr.To("c")})
		}, "is part of composite group c"},
		"claims": {func() (Terms, error) {
			return native(schedulingv1beta1.PodGroupSpec{SchedulingPolicy: four, ResourceClaims: make([]schedulingv1beta1.PodGroupResourceClaim, 1)})
		}, "shares resource claims among its pods"},
	} {
		got, err := c.got()
		said := fmt.Sprintf("size %d min %d tasks %v required %s preferred %s free %v patience %v unheeded %v", got.Size, got.Min, got.Tasks, got.Topology.Required, got.Topology.Preferred, got.Free, got.Patience, got.Unheeded)
		if err != nil {
			said = err.Error()
		}
		for _, part := range []string{" tasks map[]", " required  preferred "} { // what is not set is not listed in what is wanted
			if !strings.Contains(c.want, strings.TrimSpace(part)) && !strings.Contains(c.want, "required") {
				said = strings.Replace(said, part, " ", 1)
			}
		}
		if !holdsInOrder(said, c.want) {
			t.Errorf("%s: %s, want %s", name, said, c.want)
		}
	}
}

// holdsInOrder says whether all words of want stand in said, in order.
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

func TestOwnLeast(t *testing.T) {
	for value, want := range map[string]int{"": 0, "3": 3, "4": 0, "5": -1, "0": -1, "x": -1} {
		p := groupPod(nil, map[string]string{v1alpha1.AnnotationGangSize: "4"}, "")
		if value != "" {
			p.Annotations[v1alpha1.AnnotationMinMembers] = value
		}
		got, err := OwnTerms(p)
		if (err != nil) != (want < 0) || (err == nil && (got.Min != want || got.Size != 4)) {
			t.Errorf("%q: %+v, %v", value, got, err)
		}
	}
}

// What the pods ask for wins over what their group does.
func TestAsks(t *testing.T) {
	of := Terms{Topology: gang.Topology{Required: "tier"}}
	p := groupPod(nil, map[string]string{v1alpha1.AnnotationSpares: "1"}, "")
	if got, err := Asks(p, of); err != nil || got.Required != "tier" || got.Spares != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	p.Annotations[v1alpha1.AnnotationTopologyPreferred] = "rack"
	if got, err := Asks(p, of); err != nil || got.Required != "" || got.Preferred != "rack" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCoschedulingStatus(t *testing.T) {
	pods := func(phases ...corev1.PodPhase) (all []*corev1.Pod) {
		for _, phase := range phases {
			all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{Name: "job"}}}, Status: corev1.PodStatus{Phase: phase}})
		}
		return all
	}
	const run, done, bad, wait = corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending
	for _, c := range []struct {
		was  coscheduling.PodGroupPhase
		pods []*corev1.Pod
		want string
	}{
		{"", nil, "Pending 0 0 0 "},
		{"", pods(wait, wait), "Scheduling 0 0 0 ns/job"},
		{"Pending", pods(wait), "Pending 0 0 0 "},
		{"Scheduling", pods(run, wait), "Scheduling 1 0 0 "},
		{"Scheduling", pods(run, run), "Running 2 0 0 "},
		{"Running", pods(run), "Pending 1 0 0 "},
		{"Running", pods(run, bad), "Failed 1 0 1 "},
		{"Running", pods(done, run), "Running 1 1 0 "},
		{"Running", pods(done, done, run), "Finished 1 2 0 "},
		{"Failed", pods(run, run), "Failed 0 0 0 "},
	} {
		pg := &coscheduling.PodGroup{Spec: coscheduling.PodGroupSpec{MinMember: 2}, Status: coscheduling.PodGroupStatus{Phase: c.was}}
		s := CoschedulingStatus(pg, c.pods)
		if got := fmt.Sprint(s.Phase, " ", s.Running, " ", s.Succeeded, " ", s.Failed, " ", s.OccupiedBy); got != c.want {
			t.Errorf("%s, %d pods: %s, want %s", c.was, len(c.pods), got, c.want)
		}
		pg.Status = s
		if again := CoschedulingStatus(pg, c.pods); !reflect.DeepEqual(again, s) {
			t.Errorf("%s, %d pods: not at rest: %+v then %+v", c.was, len(c.pods), s, again)
		}
	}
}

func TestVolcanoStatus(t *testing.T) {
	on := func(phase corev1.PodPhase, node string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	}
	pg := &vcscheduling.PodGroup{Spec: vcscheduling.PodGroupSpec{MinMember: 2}}
	now := metav1.Now()
	no := &v1alpha1.PlacementStatus{Reason: v1alpha1.ReasonInsufficientNodes, Message: "no room"}
	for _, c := range []struct {
		pods   []*corev1.Pod
		answer *v1alpha1.PlacementStatus
		want   string
	}{
		{nil, nil, "Inqueue []"},
		{[]*corev1.Pod{on("Pending", ""), on("Pending", "")}, no, "Inqueue [Unschedulable NotEnoughResources no room]"},
		{[]*corev1.Pod{on("Running", "a"), on("Pending", "")}, &v1alpha1.PlacementStatus{Reason: v1alpha1.ReasonMemberLost, Message: "one is gone"}, "Unknown [Unschedulable NotEnoughTasks one is gone]"},
		{[]*corev1.Pod{on("Running", "a"), on("Pending", "b")}, &v1alpha1.PlacementStatus{Placed: true, Message: "all"}, "Running [Scheduled tasks in gang are ready to be scheduled all]"},
		{[]*corev1.Pod{on("Succeeded", "a"), on("Failed", "b")}, nil, "Completed [Scheduled tasks in gang are ready to be scheduled all]"},
	} {
		pg.Status = VolcanoStatus(pg, c.pods, c.answer, now)
		var conditions []string
		for _, one := range pg.Status.Conditions {
			conditions = append(conditions, fmt.Sprint(one.Type, " ", one.Reason, " ", one.Message))
		}
		if got := fmt.Sprint(pg.Status.Phase, " ", conditions); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if again := VolcanoStatus(pg, c.pods, c.answer, metav1.Unix(1, 0)); !reflect.DeepEqual(again, pg.Status) {
			t.Errorf("not at rest: %+v then %+v", pg.Status, again)
		}
	}
}

// Once placed, for ever told so.
func TestNativeCondition(t *testing.T) {
	pg := &schedulingv1beta1.PodGroup{}
	no, yes := &v1alpha1.PlacementStatus{Message: "no"}, &v1alpha1.PlacementStatus{Placed: true, Message: "yes"}
	for i, c := range []struct {
		answer *v1alpha1.PlacementStatus
		news   bool
	}{{nil, false}, {no, true}, {no, false}, {&v1alpha1.PlacementStatus{Message: "other"}, true}, {yes, true}, {no, false}, {yes, false}} {
		condition, news := NativeCondition(pg, c.answer, metav1.Now())
		if news != c.news {
			t.Errorf("step %d: news %v, want %v", i, news, c.news)
		}
		if news {
			pg.Status.Conditions = []metav1.Condition{condition}
		}
	}
	if got := pg.Status.Conditions[0]; got.Status != metav1.ConditionTrue || got.Message != "yes" {
		t.Errorf("%+v", got)
	}
}

func TestTiers(t *testing.T) {
	node := func(name, rack string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}
	}
	hyper := func(name string, tier int, members ...vctopology.MemberSpec) *vctopology.HyperNode {
		return &vctopology.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: vctopology.HyperNodeSpec{Tier: tier, Members: members}}
	}
	exact := func(kind vctopology.MemberType, name string) vctopology.MemberSpec {
		return vctopology.MemberSpec{Type: kind, Selector: vctopology.MemberSelector{ExactMatch: &vctopology.ExactMatch{Name: name}}}
	}
	regex := func(kind vctopology.MemberType, pattern string) vctopology.MemberSpec {
		return vctopology.MemberSpec{Type: kind, Selector: vctopology.MemberSelector{RegexMatch: &vctopology.RegexMatch{Pattern: pattern}}}
	}
	rack := vctopology.MemberSpec{Type: vctopology.MemberTypeNode, Selector: vctopology.MemberSelector{LabelMatch: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "r9"}}}}
	top := hyper("top", 5, regex(vctopology.MemberTypeHyperNode, "^leaf"), exact(vctopology.MemberTypeHyperNode, "top"))
	top.Spec.TierName = "spine"
	tiers, wrong := TiersOf([]*vctopology.HyperNode{top, hyper("leaf-a", 1, exact(vctopology.MemberTypeNode, "n1"), exact(vctopology.MemberTypeNode, "n2")),
		hyper("leaf-b", 1, regex(vctopology.MemberTypeNode, "^n[23]$"), rack), hyper("broken", 1, regex(vctopology.MemberTypeNode, "("))})
	if len(wrong) != 1 || !strings.Contains(wrong[0], "HyperNode broken") {
		t.Errorf("what is wrong: %q", wrong)
	}
	if got := fmt.Sprint(tiers.Levels()); got != "[{spine topology.volcano.sh/tier-5} {tier-1 topology.volcano.sh/tier-1}]" {
		t.Errorf("levels %s", got)
	}
	for name, want := range map[string]string{"n1": "[top leaf-a]", "n2": "[top leaf-a]", "n3": "[top leaf-b]", "n4": "[ ]"} {
		if got := fmt.Sprint(tiers.Place(node(name, ""))); got != want {
			t.Errorf("%s is in %s, want %s", name, got, want)
		}
	}
	if got := fmt.Sprint(tiers.Place(node("n8", "r9"))); got != "[top leaf-b]" {
		t.Errorf("by label: %s", got)
	}
	if none, _ := TiersOf(nil); none != nil || none.Levels() != nil || none.Place(node("n1", "")) != nil {
		t.Error("no HyperNodes are some")
	}
}
