package external

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	vctopology "volcano.sh/apis/pkg/apis/topology/v1alpha1"

	"holdfast.dev/holdfast/topology"
)

// Tiers are Volcano's HyperNodes as levels of the fabric: each tier is a level, the highest tier the widest, and each HyperNode a domain. A
// nil Tiers has no levels.
type Tiers struct {
	levels []topology.Level
	at     map[int]int // level by tier
	// direct lists the HyperNodes that name nodes; parents are, by name of a HyperNode, the HyperNodes that name it.
	direct  []hyper
	named   map[string][]string // HyperNodes by the nodes that they name exactly
	tier    map[string]int
	parents map[string][]string
}

// hyper is a HyperNode that selects its nodes by a rule.
type hyper struct {
	name    string
	matches func(*corev1.Node) bool
}

// tiersOf reads HyperNodes. It leaves out those that it cannot read and returns a note on each.
func tiersOf(all []*vctopology.HyperNode) (*Tiers, []string) {
	if len(all) == 0 {
		return nil, nil
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b *vctopology.HyperNode) int { return cmp.Compare(a.Name, b.Name) })
	t := &Tiers{at: map[int]int{}, named: map[string][]string{}, tier: map[string]int{}, parents: map[string][]string{}}
	names := map[int]string{}
	for _, h := range all {
		t.tier[h.Name] = h.Spec.Tier
		if names[h.Spec.Tier] == "" {
			names[h.Spec.Tier] = h.Spec.TierName
		}
	}
	for i, tier := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		t.at[tier] = len(names) - 1 - i
		name := names[tier]
		if name == "" {
			name = strings.TrimPrefix(tierKey(tier), "topology.volcano.sh/")
		}
		t.levels = append(t.levels, topology.Level{Name: name, Key: tierKey(tier)})
	}
	var wrong []string
	for _, h := range all {
		for _, m := range h.Spec.Members {
			if err := t.member(h.Name, m, all); err != nil {
				wrong = append(wrong, "HyperNode "+h.Name+": "+err.Error())
			}
		}
	}
	return t, wrong
}

func (t *Tiers) member(name string, m vctopology.MemberSpec, all []*vctopology.HyperNode) error {
	var match func(string) bool
	switch s := m.Selector; {
	case s.ExactMatch != nil && m.Type == vctopology.MemberTypeNode:
		t.named[s.ExactMatch.Name] = append(t.named[s.ExactMatch.Name], name)
		return nil
	case s.ExactMatch != nil:
		match = func(other string) bool { return other == s.ExactMatch.Name }
	case s.RegexMatch != nil:
		re, err := regexp.Compile(s.RegexMatch.Pattern)
		if err != nil {
			return err
		}
		match = re.MatchString
	case s.LabelMatch != nil && m.Type == vctopology.MemberTypeNode:
		selector, err := metav1.LabelSelectorAsSelector(s.LabelMatch)
		if err != nil {
			return err
		}
		t.direct = append(t.direct, hyper{name, func(n *corev1.Node) bool { return selector.Matches(labels.Set(n.Labels)) }})
		return nil
	default:
		return nil
	}
	if m.Type == vctopology.MemberTypeNode {
		t.direct = append(t.direct, hyper{name, func(n *corev1.Node) bool { return match(n.Name) }})
		return nil
	}
	for _, h := range all {
		if h.Name != name && match(h.Name) {
			t.parents[h.Name] = append(t.parents[h.Name], name)
		}
	}
	return nil
}

// Levels returns the tiers, highest first.
func (t *Tiers) Levels() []topology.Level {
	if t == nil {
		return nil
	}
	return t.levels
}

// Place returns the node's HyperNode in each level; "": none. If two of one tier contain the node, the first by name counts.
func (t *Tiers) Place(node *corev1.Node) []string {
	if t == nil {
		return nil
	}
	place := make([]string, len(t.levels))
	seen := map[string]bool{}
	var climb func(name string)
	climb = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		if at := t.at[t.tier[name]]; place[at] == "" || name < place[at] {
			place[at] = name
		}
		for _, parent := range t.parents[name] {
			climb(parent)
		}
	}
	for _, name := range t.named[node.Name] {
		climb(name)
	}
	for _, h := range t.direct {
		if h.matches(node) {
			climb(h.name)
		}
	}
	return place
}
