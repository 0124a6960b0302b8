package gang

import (
	"cmp"
	"slices"

	"holdfast.dev/holdfast/topology"
)

// maxRegions bounds how many domains are tried for a gang of several shapes before the search tries all nodes.
const maxRegions = 16

// placeMixed places members of several shapes, or with rules among them. Slices and closeness are found by counts for
// the shape that most members have; the search keeps these members to their slice's domain.
func (s *search) placeMixed() bool {
	s.held, s.main = s.g.held(), s.mainRole()
	s.kept, s.nodes = map[int]bool{}, map[int][]int{}
	for role := range s.perRole(s.order) {
		v := newView(s.tree, s.g, role, s.rules)
		for _, i := range v.spared {
			s.kept[i] = true
		}
		if role == s.main {
			s.bare = setOf(v.unlabelled)
		}
	}
	s.hardestFirst()
	region, known := topology.Root, true
	if s.standing {
		region, known = s.bounds()
		s.freshFirst(region)
	}
	s.keepAllTo(region)
	s.once, s.tries = s.infeasible(region, s.order), maxTries+s.onePass()
	s.asks = s.extra + 2*(len(s.order)+s.tree.Len())
	defer func() { s.extra = max(0, min(s.extra, s.asks)) }() // members beyond the required ones get what remains
	if s.standing {
		mark := s.tree.Mark()
		if known && s.descendWithin(region) {
			return true
		}
		s.tree.Undo(mark)
		return false
	}
	if s.rules.slice >= 0 {
		return s.placeSlicesFirst()
	}
	regions := s.regions()
	if s.rules.required < 0 {
		regions = append(regions, topology.Root)
	}
	return s.placeInOne(regions)
}

// placeInOne places all members in the first domain where that is possible. The domains were chosen by counts, which ignore rules among
// members. So each domain first gets one pass, and the full search runs only if no pass succeeded. A domain that was searched completely is
// not searched again.
func (s *search) placeInOne(domains []int) bool {
	all := s.tries
	var open []int
	for _, d := range domains {
		s.keepAllTo(d)
		s.tries = 2 * s.onePass()
		if s.descendWithin(d) {
			return true
		}
		if s.tries < 0 {
			open = append(open, d)
		}
	}
	s.tries = all
	for _, d := range open {
		if s.descendWithin(d) {
			return true
		}
		if s.tries < 0 {
			return false
		}
	}
	return false
}

// regions returns the domains in which all members might fit, the narrowest first; with a required level, all of that level.
func (s *search) regions() []int {
	need := s.perRole(s.order)
	views := map[int]*view{}
	for role := range need {
		views[role] = newView(s.tree, s.g, role, s.rules)
	}
	var all []int
	for level := len(s.tree.Levels()) - 1; level >= max(0, s.rules.required); level-- {
		found := 0
		for _, d := range s.tree.Domains(level) {
			fits := true
			for role, n := range need {
				fits = fits && int(views[role].places[d]) >= n
			}
			if fits && (found < maxRegions || level == s.rules.required) {
				all = append(all, d)
				found++
			}
		}
	}
	return all
}

// perRole counts members by role.
func (s *search) perRole(members []int) map[int]int {
	need := map[int]int{}
	for _, m := range members {
		need[s.g.Members[m].Role]++
	}
	return need
}

func setOf(all []int) map[int]bool {
	set := make(map[int]bool, len(all))
	for _, i := range all {
		set[i] = true
	}
	return set
}

// mainRole returns the role of most members, the first of equals.
func (s *search) mainRole() int {
	need := s.perRole(s.order)
	main := -1
	for role := range s.g.Roles {
		if main < 0 || need[role] > need[main] {
			main = role
		}
	}
	return main
}

// placeSlicesFirst plans the slices of the main shape by counts alone, then searches with these members kept to the domains of their
// slices. Counts ignore the other shapes and rules: if a domain did not take its planned members, the slices are planned again without it.
// Each of these plans gets one pass, as in placeInOne; if none succeeds, the first one gets the full search.
func (s *search) placeSlicesFirst() bool {
	var members []int
	for _, m := range s.order {
		if s.g.Members[m].Role == s.main {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, s.g.bySlot)
	v := newView(s.tree, s.g, s.main, s.rules).clone()
	all, deepest, cut := s.tries, 0, false
	var first []int
	for range maxRegions {
		at, ok := s.plan(v, members)
		if !ok {
			break
		}
		if first == nil {
			first = at
		}
		s.keepTo(members, at)
		s.tries, s.deepest = 2*s.onePass(), 0
		if s.descendAll() {
			return true
		}
		if s.once {
			return false
		}
		deepest, cut = max(deepest, s.deepest), cut || s.tries < 0
		v.release(s.stuck(len(members)))
	}
	if s.tries = all; cut {
		s.keepTo(members, first)
		s.tries = maxTries + s.onePass()
		if s.descendAll() {
			return true
		}
	}
	s.deepest = max(deepest, s.deepest)
	return false
}

// onePass returns the most nodes visited by a search that moves no placed member. Equal members continue where the previous one was placed.
func (s *search) onePass() int {
	n := s.inBlocks / s.rules.block * s.tree.Len() // a look at the domains for each fresh block
	for k, d := range s.within {
		if n++; !s.continues(k) {
			n += len(s.list(d))
		}
	}
	return n
}

// infeasible reports whether counts alone prove that a domain cannot take all of some members: those of one role lack room even without
// the others, or all useful nodes together have less of a resource than is requested in all.
func (s *search) infeasible(d int, members []int) bool {
	need, places := s.perRole(members), map[int]int{}
	asked, free := topology.Resources{}, topology.Resources{}
	for role, n := range need {
		for name, v := range s.g.Roles[role].Requests {
			asked[name] += int64(n) * v
		}
	}
	for _, i := range s.list(d) {
		used := false
		for role, n := range need {
			room := s.room(i, role, n)
			places[role] += room
			used = used || room > 0
		}
		for name := range asked {
			if used {
				free[name] += max(0, s.tree.Free(i, name))
			}
		}
	}
	for role, n := range need {
		if places[role] < n {
			return true
		}
	}
	for name, v := range asked {
		if free[name] < v {
			return true
		}
	}
	return false
}

// stuck returns the domain that took no further member; if that is all nodes, the last domain of the first members, which are in slices.
func (s *search) stuck(inSlices int) int {
	d := s.within[min(s.deepest, len(s.within)-1)]
	if d == topology.Root {
		d = s.within[inSlices-1]
	}
	return d
}

// keepTo restricts each of the members to the domain of its slice, and all others to the required domain.
func (s *search) keepTo(members, at []int) {
	domain := map[int]int{}
	region := topology.Root
	for k, m := range members {
		domain[m] = s.tree.Ancestor(s.tree.Leaf(at[k]), s.rules.slice)
		region = s.tree.Ancestor(domain[m], s.rules.required)
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		if domain[a] == 0 && domain[b] == 0 {
			return 0 // hardest first, as they are
		}
		return cmp.Or(int(one(domain[a] == 0)-one(domain[b] == 0)), s.g.bySlot(a, b))
	})
	s.within = make([]int, len(s.order))
	for k, m := range s.order {
		s.within[k] = region
		if d, ok := domain[m]; ok {
			s.within[k] = d
		}
	}
}

func (s *search) descendWithin(d int) bool {
	s.keepAllTo(d)
	return s.descendAll()
}

// keepAllTo restricts all members to a domain.
func (s *search) keepAllTo(d int) {
	s.within = make([]int, len(s.order))
	for k := range s.within {
		s.within[k] = d
	}
}

func (s *search) descendAll() bool {
	s.at, s.pos, s.assignments = nil, nil, nil
	return s.descend(0)
}

// room returns how many members of a role a node takes now.
func (s *search) room(i, role, limit int) int {
	r := s.g.Roles[role]
	if r.OutAll != nil || s.kept[i] || (role == s.main && s.bare[i]) {
		return 0
	}
	if _, out := r.Out[s.tree.Name(i)]; out {
		return 0
	}
	others := s.tree.Tenants(i) > s.held[s.tree.Name(i)]
	if others && (s.rules.whole || s.tree.Exclusive(i)) {
		return 0
	}
	return s.tree.Room(i, r.Requests, limit)
}

// hardestFirst moves members of the role with the fewest places to the front.
func (s *search) hardestFirst() {
	places := make([]int, len(s.g.Roles))
	for role := range s.g.Roles {
		for i := range s.tree.All() {
			places[role] += s.room(i, role, len(s.order))
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		ra, rb := s.g.Members[a].Role, s.g.Members[b].Role
		return cmp.Or(cmp.Compare(places[ra], places[rb]), cmp.Compare(ra, rb))
	})
}

// descend places order[k] and all after it, or reverts its changes.
func (s *search) descend(k int) bool {
	s.deepest = max(s.deepest, k)
	switch {
	case k == len(s.order):
		return true
	case k < s.inBlocks && k%s.rules.block == 0:
		return s.descendBlock(k)
	}
	return s.descendOne(k)
}

// descendOne places order[k] in its domain, and all after it.
func (s *search) descendOne(k int) bool {
	m := s.g.Members[s.order[k]]
	nodes, from := s.list(s.within[k]), s.from(k)
	for step := range nodes {
		pos := from + step
		if pos >= len(nodes) {
			if s.g.Agree == nil {
				break // equal members need not be permuted
			}
			pos -= len(nodes)
		}
		i := nodes[pos]
		if s.tries--; s.visited >= s.limit {
			s.tries = -1
		}
		if s.tries < 0 {
			return false
		}
		s.visited++
		if s.room(i, m.Role, 1) == 0 || !s.agree(k, i) {
			continue
		}
		mark := s.tree.Mark()
		s.tree.Take(i, s.g.Roles[m.Role].Requests)
		s.at, s.pos, s.assignments = append(
			s.at,
			i,
		), append(
			s.pos,
			pos,
		), append(
			s.assignments,
			Assignment{Slot: m.Slot, Member: m.Name, Node: s.tree.Name(i)},
		)
		if s.descend(k + 1) {
			return true
		}
		s.at, s.pos, s.assignments = s.at[:k], s.pos[:k], s.assignments[:k]
		s.tree.Undo(mark)
		if s.once {
			return false
		}
	}
	return false
}

// list returns the nodes of a domain.
func (s *search) list(d int) []int {
	if s.nodes[d] == nil {
		s.nodes[d] = slices.Collect(s.tree.Within(d))
	}
	return s.nodes[d]
}

// from returns where in its domain's nodes order[k] starts to search: where the last equal member was placed. Nodes that did not take that
// one are unlikely to take this one; with rules among members they are searched last.
func (s *search) from(k int) int {
	if !s.alike(k) {
		return 0
	}
	return s.pos[k-1]
}

// alike reports whether order[k] has the role and the domain of the member before it.
func (s *search) alike(k int) bool {
	return k > 0 && s.within[k] == s.within[k-1] && s.g.Members[s.order[k]].Role == s.g.Members[s.order[k-1]].Role
}

// continues reports whether order[k] can skip the nodes that did not take the member before it.
func (s *search) continues(k int) bool { return s.g.Agree == nil && s.alike(k) }

func (s *search) agree(k, node int) bool {
	if s.g.Agree == nil {
		return true
	}
	if s.asks--; s.asks < 0 {
		s.tries = -1
		return false
	}
	_, ok := s.g.Agree(s.order[k], s.tree.Name(node), slices.Clip(s.assignments))
	return ok
}
