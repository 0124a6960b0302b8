package gang

import (
	"errors"
	"fmt"
	"slices"

	"holdfast.dev/holdfast/topology"
)

// promised returns what is wrong with an answer: with the counts of a refusal or the assignments of a placement. For a complete initial
// placement it also checks domains, slices and the other pods on its nodes.
func promised(tree *topology.Tree, f fabric, p Placement, r *Refusal) error {
	if r != nil {
		excluded := 0
		for _, nodes := range r.Excluded {
			excluded += len(nodes)
		}
		if len(p.Assignments) > 0 || r.Reason == "" || r.Message == "" || r.Fits > r.Wanted || r.Wanted > max(f.g.Size, len(f.g.Members)) ||
			excluded > r.Nodes {
			return fmt.Errorf("%d assignments beside the refusal %+v", len(p.Assignments), r)
		}
		return nil
	}
	if err := lawful(tree, f.g, p); err != nil {
		return err
	}
	again := slices.ContainsFunc(f.g.Members, func(m Member) bool { return m.Node != "" })
	if again || len(p.Assignments) < len(f.g.Members) {
		return nil
	}
	rules, err := f.g.Topology.resolve(tree)
	if err != nil {
		return err
	}
	s := &slow{fabric: f, rules: rules}
	s.nodes = slices.Clone(f.nodes)
	for i := range s.nodes {
		for n := &s.nodes[i]; len(n.Domain) < len(f.levels); {
			n.Domain = append(slices.Clip(n.Domain), "")
		}
	}
	all, most, wanted := s.mostAlike(p)
	for i, n := range all {
		if node := s.nodes[i]; n > 0 && (node.Exclusive || rules.whole && node.Tenants > 0) {
			return fmt.Errorf("%s is not for this gang alone, or is another's", node.Name)
		}
	}
	sizes := []int{1}
	if rules.slice >= 0 {
		sizes = rules.shares(wanted)
	}
	if !slices.ContainsFunc(sizes, func(size int) bool { return s.allowed(most, size) }) {
		return errors.New("the placement is not in one required domain, or not in slices")
	}
	if s.rules.slice = -1; !s.allowed(all, 1) {
		return errors.New("the placement is not in one required domain")
	}
	return nil
}

// mostAlike counts, by node, all members and those of the most frequent shape, of which slices are made. wanted is the number of the
// latter.
func (s *slow) mostAlike(p Placement) (all, most []int, wanted int) {
	of := make([]int, len(s.g.Roles))
	for _, m := range s.g.Members {
		of[m.Role]++
	}
	wanted = slices.Max(of)
	all, most = make([]int, len(s.nodes)), make([]int, len(s.nodes))
	for k, a := range p.Assignments {
		i := slices.IndexFunc(s.nodes, func(n topology.Node) bool { return n.Name == a.Node })
		all[i]++
		if s.g.Members[k].Role == slices.Index(of, wanted) {
			most[i]++
		}
	}
	return all, most, wanted
}
