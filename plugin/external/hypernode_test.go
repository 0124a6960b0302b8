package external

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	vctopology "volcano.sh/apis/pkg/apis/topology/v1alpha1"
)

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
	rack := vctopology.MemberSpec{
		Type:     vctopology.MemberTypeNode,
		Selector: vctopology.MemberSelector{LabelMatch: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "r9"}}},
	}
	top := hyper("top", 5, regex(vctopology.MemberTypeHyperNode, "^leaf"), exact(vctopology.MemberTypeHyperNode, "top"))
	top.Spec.TierName = "spine"
	tiers, wrong := tiersOf(
		[]*vctopology.HyperNode{top, hyper("leaf-a", 1, exact(vctopology.MemberTypeNode, "n1"), exact(vctopology.MemberTypeNode, "n2")),
			hyper("leaf-b", 1, regex(vctopology.MemberTypeNode, "^n[23]$"), rack), hyper("broken", 1, regex(vctopology.MemberTypeNode, "("))},
	)
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
	if none, _ := tiersOf(nil); none != nil || none.Levels() != nil || none.Place(node("n1", "")) != nil {
		t.Error("no HyperNodes are some")
	}
}
