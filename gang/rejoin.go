package gang

import (
	"maps"
	"slices"

	"holdfast.dev/holdfast/topology"
)

// fewLost is the most members that are placed one by one, each next to its neighbours; more are placed together.
const fewLost = 16

// rejoin places members of a gang that has others on nodes. Slices are refilled in their domains; a slice that was lost completely gets its
// own domain. Otherwise, and without slices, each member goes as near to its neighbours as there is room: the same domain, then one level
// up, never out of the required one.
func (s *search) rejoin(v *view, order []int) ([]int, bool) {
	region, known := s.bounds()
	if !known {
		return nil, false
	}
	if s.rules.slice > s.rules.required {
		for _, size := range s.rules.shares(s.slots()) {
			if at, ok := s.refill(v.clone(), order, size, region); ok {
				return at, true
			}
		}
	}
	if int(v.places[region]) < len(order) {
		return nil, false
	}
	v = v.clone()
	stand := s.stand()
	at := make([]int, len(order))
	rest, ok := s.freshBlocks(v, at, order, region)
	if !ok || int(v.places[region]) < len(rest) {
		return nil, false
	}
	if len(rest) > fewLost {
		for i, node := range s.together(v, order[rest[0]], len(rest), region, stand) {
			at[rest[i]] = node
		}
		return at, true
	}
	for _, k := range rest {
		slot := s.g.Members[order[k]].Slot
		at[k] = s.nearest(v, s.home(stand, slot), region)
		v.set(at[k], int(v.rooms[at[k]])-1)
		stand = append(stand, seated{slot, s.tree.Name(at[k])})
	}
	return at, true
}

// seated is a member on its node.
type seated struct {
	slot int
	node string
}

// stand returns the members that are on nodes.
func (s *search) stand() []seated {
	all := make([]seated, 0, len(s.g.Members)+fewLost)
	for i := range s.g.Members {
		if m := &s.g.Members[i]; m.Node != "" {
			all = append(all, seated{m.Slot, m.Node})
		}
	}
	return all
}

// bounds returns the domain that the gang must not leave: the one of the required level in which it is. Members on nodes that are gone or
// have lost the label do not count. If the others are in several domains, for example after a change of labels, the one with most of them
// counts. known is false if no member counts.
func (s *search) bounds() (region int, known bool) {
	if s.rules.required < 0 {
		return topology.Root, true
	}
	members, most := map[int]int{}, 0
	for _, m := range s.stand() {
		i, ok := s.tree.Find(m.node)
		if !ok {
			continue
		}
		d := s.tree.Ancestor(s.tree.Leaf(i), s.rules.required)
		if !s.tree.Named(d) {
			continue
		}
		if members[d]++; members[d] > most {
			region, most = d, members[d]
		}
	}
	return region, most > 0
}

// home returns the node of the nearest neighbour by slot; of two equally near ones, the one whose domain has fewer of the gang; -1: no
// member is on a node of the tree.
func (s *search) home(stand []seated, slot int) int {
	below, above := seated{}, seated{}
	for _, m := range stand {
		lower := m.slot <= slot && (below.node == "" || m.slot > below.slot)
		higher := m.slot > slot && (above.node == "" || m.slot < above.slot)
		if !lower && !higher {
			continue
		}
		if _, known := s.tree.Find(m.node); !known {
			continue
		}
		if lower {
			below = m
		} else if higher {
			above = m
		}
	}
	far, near := above.slot-slot, slot-below.slot
	switch {
	case below.node == "" && above.node == "":
		return -1
	case below.node == "" || (above.node != "" && far < near):
		below = above
	case above.node != "" && far == near && s.crowd(stand, above) < s.crowd(stand, below):
		below = above
	}
	i, _ := s.tree.Find(below.node)
	return i
}

// crowd counts the gang's members in a member's domain, at the level of slices or the narrowest.
func (s *search) crowd(stand []seated, of seated) int {
	level := len(s.tree.Levels()) - 1
	if s.rules.slice >= 0 {
		level = s.rules.slice
	}
	domain := func(m seated) int {
		i, ok := s.tree.Find(m.node)
		if !ok {
			return -1
		}
		return s.tree.Ancestor(s.tree.Leaf(i), level)
	}
	n, home := 0, domain(of)
	for _, m := range stand {
		n += int(one(domain(m) == home))
	}
	return n
}

// nearest returns a node with room in region that is near to home: the same node, else in the narrowest domain that has room, and there the
// one with the least cost.
func (s *search) nearest(v *view, home, region int) int {
	within := region
	if home >= 0 && s.inside(home, region) {
		if v.rooms[home] > 0 {
			return home
		}
		for d := s.tree.Leaf(home); d != region; d = s.tree.Parent(d) {
			if v.places[d] > 0 && s.tree.Named(d) {
				within = d
				break
			}
		}
	}
	return newSpread(v, s.rules.near).assign(within, 1, nil)[0].node
}

func (s *search) inside(node, region int) bool {
	return s.tree.Ancestor(s.tree.Leaf(node), s.tree.LevelOf(region)) == region
}

// together places n members in the narrowest domain around the first one that takes them all.
func (s *search) together(v *view, first, n, region int, stand []seated) []int {
	within := region
	if home := s.home(stand, s.g.Members[first].Slot); home >= 0 && s.inside(home, region) {
		for d := s.tree.Leaf(home); d != region; d = s.tree.Parent(d) {
			if int(v.places[d]) >= n && s.tree.Named(d) {
				within = d
				break
			}
		}
	}
	return nodesOf(s.tree, newSpread(v, s.rules.near).assign(within, n, nil))
}

// keepsBlocks reports whether fresh blocks of an elastic gang, all of whose slots are to be placed, each go into one domain also beside
// members on nodes.
func (s *search) keepsBlocks() bool {
	return s.g.Unit > 1 && s.rules.block > 1 && s.rules.slice > s.rules.required
}

// slots returns over how many slots the gang's slices extend: where blocks keep together, slots without a member count.
func (s *search) slots() int {
	n := len(s.g.Members)
	if s.keepsBlocks() {
		for _, m := range s.g.Members {
			n = max(n, m.Slot+1)
		}
		n += (s.g.Unit - n%s.g.Unit) % s.g.Unit
	}
	return n
}

// freshOf divides the members to be placed into those of fresh blocks, if these keep together, and the others.
func (s *search) freshOf(order []int) (fresh, rest []int) {
	wanted := map[int]int{} // by block
	if s.keepsBlocks() {
		for _, m := range order {
			wanted[s.g.Members[m].Slot/s.rules.block]++
		}
	}
	for k, m := range order {
		if wanted[s.g.Members[m].Slot/s.rules.block] == s.rules.block {
			fresh = append(fresh, k)
		} else {
			rest = append(rest, k)
		}
	}
	return fresh, rest
}

// freshBlocks places fresh blocks, each in one domain, and returns which others remain. v is changed.
func (s *search) freshBlocks(v *view, at, order []int, region int) (rest []int, ok bool) {
	fresh, rest := s.freshOf(order)
	n := len(fresh) / s.rules.block
	if n == 0 {
		return rest, true
	}
	sp := newSpread(v, s.rules.near)
	sp.inUnits(s.rules.block, s.rules.slice, false, nil)
	if int(sp.units[region]) < n {
		return nil, false
	}
	s.put(v, at, fresh, sp.assign(region, n, nil))
	return rest, true
}

// freshFirst moves the members of fresh blocks to the front of the search, block by block, and lists the domains that may take them.
func (s *search) freshFirst(region int) {
	fresh, rest := s.freshOf(s.order)
	if s.inBlocks = len(fresh); s.inBlocks == 0 {
		return
	}
	members := func(which []int) (all []int) {
		for _, k := range which {
			all = append(all, s.order[k])
		}
		return all
	}
	s.order = append(slices.SortedFunc(slices.Values(members(fresh)), s.g.bySlot), members(rest)...)
	s.homes = slices.DeleteFunc(s.tree.Domains(s.rules.slice), func(d int) bool {
		return s.tree.Ancestor(d, s.tree.LevelOf(region)) != region
	})
}

// descendBlock places the fresh block that begins at order[k] in one domain, and all after it. It tries each domain, from the one of the
// block before on.
func (s *search) descendBlock(k int) bool {
	end, from := k+s.rules.block, 0
	if k > 0 {
		from = slices.Index(s.homes, s.within[k-1])
	}
	for step := range s.homes {
		d := s.homes[(from+step)%len(s.homes)]
		s.tries, s.visited = s.tries-len(s.list(d)), s.visited+len(s.list(d))
		if s.infeasible(d, s.order[k:end]) {
			continue
		}
		for i := k; i < end; i++ {
			s.within[i] = d
		}
		if s.descendOne(k) {
			return true
		}
		if s.tries < 0 || s.once && s.deepest >= end {
			return false
		}
	}
	return false
}

// slicesOf groups members into slices of a size by their slot, and returns each slice's domain, -1 for a lost one. ok is false if the
// gang's members are not in such slices.
func (s *search) slicesOf(size int) (of map[int]int, homes []int, ok bool) {
	all := make([]int, len(s.g.Members))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, s.g.bySlot)
	of, homes = make(map[int]int, len(all)), make([]int, s.slots()/size)
	for j := range homes {
		homes[j] = -1
	}
	used := map[int]bool{}
	for k, m := range all {
		j := k / size
		if s.keepsBlocks() {
			j = s.g.Members[m].Slot / size
		}
		of[m] = j
		i, known := s.tree.Find(s.g.Members[m].Node)
		if s.g.Members[m].Node == "" || !known {
			continue
		}
		d := s.tree.Ancestor(s.tree.Leaf(i), s.rules.slice)
		if !s.tree.Named(d) || (homes[j] >= 0 && homes[j] != d) || (homes[j] < 0 && used[d] && !s.rules.uneven) {
			return nil, nil, false
		}
		homes[j], used[d] = d, true
	}
	return of, homes, true
}

// refill fills up slices of a size; v is changed.
func (s *search) refill(v *view, order []int, size, bounds int) ([]int, bool) {
	of, homes, ok := s.slicesOf(size)
	if !ok {
		return nil, false
	}
	lost := map[int][]int{} // members by slice
	for k, m := range order {
		lost[of[m]] = append(lost[of[m]], k)
	}
	at := make([]int, len(order))
	var gone []int
	taken := map[int]bool{}
	for _, j := range slices.Sorted(maps.Keys(lost)) {
		home := homes[j]
		switch {
		case home >= 0 && int(v.places[home]) < len(lost[j]):
			return nil, false
		case home < 0 && len(lost[j]) < size: // the tree lacks the nodes of its other members
			return nil, false
		case home < 0:
			gone = append(gone, lost[j]...)
			continue
		}
		s.put(v, at, lost[j], newSpread(v, s.rules.near).assign(home, len(lost[j]), nil))
	}
	if len(gone) == 0 {
		return at, true
	}
	first := -1
	for _, home := range homes {
		if home >= 0 {
			taken[home] = !s.rules.uneven
			if first < 0 {
				first = home
			}
		}
	}
	sp := newSpread(v, s.rules.near)
	sp.inUnits(size, s.rules.slice, !s.rules.uneven, taken)
	d := bounds
	if first >= 0 && s.tree.Ancestor(first, s.tree.LevelOf(bounds)) == bounds {
		for d = s.tree.Parent(first); d != bounds && int(sp.units[d]) < len(gone)/size; d = s.tree.Parent(d) {
		}
	}
	if int(sp.units[d]) < len(gone)/size {
		return nil, false
	}
	s.put(v, at, gone, sp.assign(d, len(gone)/size, nil))
	return at, true
}

// put assigns the nodes, in the tree's order, to the members whose places in at are listed, and takes them.
func (s *search) put(v *view, at, which []int, shares []share) {
	for k, node := range nodesOf(s.tree, shares) {
		at[which[k]] = node
		v.set(node, int(v.rooms[node])-1)
	}
}
