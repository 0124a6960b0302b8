package gang

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// maxTries bounds the search for a gang of several shapes, in node visits beyond the first pass.
const maxTries = 50_000

// maxAsks bounds the calls of Agree in it, beyond two for each node and member: Agree runs filters, which take some 10 µs, while no other
// pod is scheduled. For a gang that can run with fewer members, the search for the most that fit may use that number once more in all,
// beyond two for each node and member each time.
const maxAsks = 20_000

// noLimit is the limit of a single search.
const noLimit = math.MaxInt

// Place places the whole gang. Place leaves the tree unchanged. For a gang of one shape, placed by counts, the feasibility is exact, and so
// is the cost (see cost) up to maxCells. A gang of several shapes, or with rules among members, is placed by a search with backtracking, up
// to maxTries, domain by domain. Slots follow the tree's order, so that neighbours by slot are neighbours in the fabric. Replaced members
// are placed as near to their neighbours as there is room.
func Place(tree *topology.Tree, g Gang) (Placement, *Refusal) {
	p, refusal, _ := PlaceWithin(tree, g, noLimit)
	return p, refusal
}

// PlaceWithin is Place with a budget, for callers that search many times: a search visits at most that many nodes, and returns how many it
// visited. A refusal may then mean that the budget was too small.
func PlaceWithin(tree *topology.Tree, g Gang, limit int) (p Placement, refusal *Refusal, visited int) {
	if exist := len(g.Members); exist < g.Size {
		r := Incomplete(MemberCounts{Size: g.Size, Exist: exist, Bound: exist - len(g.missing())})
		return Placement{}, &r, 0
	}
	rules, err := g.Topology.resolve(tree)
	if err != nil {
		return Placement{}, &Refusal{Reason: InvalidTopology, Wanted: len(g.missing()), Nodes: tree.Len(), Message: err.Error()}, 0
	}
	s := &search{tree: tree, g: g, rules: rules, order: g.missing(), limit: limit, extra: maxAsks, standing: g.standing()}
	defer tree.Undo(tree.Mark())
	if refusal := s.tooLittleFree(); refusal != nil {
		return Placement{}, refusal, 0
	}
	switch {
	case len(s.order) == 0:
	case s.oneShape():
		if !s.placeByCounts() && !s.placeFewer() {
			return Placement{}, s.refuse(), 0
		}
	case !s.placeMixed() && !s.placeFewerMixed():
		return Placement{}, s.refuse(), s.visited
	}
	return s.placement(), nil, s.visited
}

// tooLittleFree refuses a gang that requires more free resources in all than there are. It applies while no member has a node.
func (s *search) tooLittleFree() *Refusal {
	if s.standing {
		return nil
	}
	var lacks []string
	for name, wanted := range s.g.Free {
		free := int64(0)
		for i := range s.tree.All() {
			free += max(0, s.tree.Free(i, name))
		}
		if free < wanted {
			lacks = append(lacks, fmt.Sprintf("%s (%s requested)", name, cmp.Or(s.g.FreeShown[name], fmt.Sprint(wanted))))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	slices.Sort(lacks)
	return &Refusal{Reason: InsufficientNodes, Wanted: len(s.order), Nodes: s.tree.Len(), Message: "the cluster has less free than the group's minResources: " + strings.Join(lacks, ", ")}
}

// missing returns the members to be placed, by slot and name.
func (g Gang) missing() []int {
	var missing []int
	for i := range g.Members {
		if g.Members[i].Node == "" {
			missing = append(missing, i)
		}
	}
	if !slices.IsSortedFunc(missing, g.bySlot) {
		slices.SortFunc(missing, g.bySlot)
	}
	return missing
}

func (g Gang) bySlot(a, b int) int {
	return cmp.Or(cmp.Compare(g.Members[a].Slot, g.Members[b].Slot), cmp.Compare(g.Members[a].Name, g.Members[b].Name))
}

type search struct {
	tree  *topology.Tree
	g     Gang
	rules rules
	// order are the members to be placed, in the order of the search; at[k] is the node of order[k].
	order []int
	at    []int
	// standing: members are already on nodes; held counts them by node, for gangs that are searched.
	standing bool
	held     map[string]int
	// v is the view of the gang's one shape before anything is placed.
	v *view
	// assignments are at in the form for Agree. For the search: within[k] is the domain of order[k], nodes lists a domain's nodes, pos[k]
	// is the position of at[k] in them, and kept nodes are left free as spares.
	assignments []Assignment
	within, pos []int
	nodes       map[int][]int
	kept        map[int]bool
	// inBlocks counts the members at the front of order that are in fresh blocks; homes are the domains of which each such block gets one.
	inBlocks int
	homes    []int
	// main is the role of most members; they do not use bare nodes, where no spares can be left.
	main int
	bare map[int]bool
	// deepest is the most members that were placed at once.
	deepest int
	// tries is how many more nodes may be visited now, limit how many in all, visited how many were.
	tries, limit, visited int
	// asks is how often Agree may be called now, extra how often beyond two calls for each node and member, in all later searches.
	asks, extra int
	// once: counts prove that not all fit, so one pass, which finds how many do, is enough.
	once bool
}

func (s *search) oneShape() bool {
	for _, m := range s.order {
		if s.g.Members[m].Role != s.g.Members[s.order[0]].Role {
			return false
		}
	}
	return s.g.Agree == nil
}

// placeByCounts places members of one shape.
func (s *search) placeByCounts() bool {
	if s.v == nil {
		s.v = newView(s.tree, s.g, s.g.Members[s.order[0]].Role, s.rules)
	}
	at, ok := s.plan(s.v, s.order)
	s.at = at
	return ok
}

// plan returns a node for each of the given members, which are of one shape and by slot.
func (s *search) plan(v *view, order []int) (at []int, ok bool) {
	if int(v.places[topology.Root]) < len(order) {
		return nil, false
	}
	if s.standing {
		return s.rejoin(v, order)
	}
	if s.rules.slice < 0 {
		return s.fresh(newSpread(v, s.rules.near), len(order))
	}
	for _, size := range s.rules.shares(len(order)) {
		if int(v.places[topology.Root]) < size {
			continue
		}
		sp := newSpread(v, s.rules.near)
		if s.rules.oneSlice() {
			return s.fresh(sp, size)
		}
		sp.inUnits(size, s.rules.slice, !s.rules.uneven, nil)
		if at, ok := s.fresh(sp, len(order)/size); ok {
			return at, true
		}
	}
	return nil, false
}

// fresh places u units where they cost least.
func (s *search) fresh(sp *spread, u int) ([]int, bool) {
	region, ok := s.region(sp, u)
	if !ok {
		return nil, false
	}
	return nodesOf(s.tree, sp.assign(region, u, nil)), true
}

// region returns the domain of the required level that takes u units at the least cost.
func (s *search) region(sp *spread, u int) (region int, ok bool) {
	if s.rules.required < 0 {
		return topology.Root, sp.holds(topology.Root) >= u
	}
	var least cost
	for _, d := range s.tree.Domains(s.rules.required) {
		if sp.holds(d) < u {
			continue
		}
		members := sp.members(d, u)
		c := slices.Clone(sp.value(part{at: d, u: u}))
		for a := s.tree.Parent(d); a > topology.Root; a = s.tree.Parent(a) {
			sp.own(c, a, members)
		}
		if least == nil || c.less(least) {
			region, least = d, c
		}
	}
	return region, least != nil
}

// nodesOf returns nodes in the tree's order, each once per member.
func nodesOf(tree *topology.Tree, shares []share) []int {
	slices.SortFunc(shares, func(a, b share) int { return tree.Compare(a.node, b.node) })
	var at []int
	for _, s := range shares {
		for range s.n {
			at = append(at, s.node)
		}
	}
	return at
}

// Needed divides the members to be placed, as indices of Members, into those that the gang needs and its surplus, with which it only grows.
// All are needed if Min is 0. Otherwise the essential ones are, and those of the lowest slots that are missing to Min.
func (g Gang) Needed() (needed, surplus []int) {
	all := g.missing()
	if g.Min < 1 {
		return all, nil
	}
	slices.SortFunc(all, func(a, b int) int {
		return cmp.Or(int(one(!g.Members[a].Essential)-one(!g.Members[b].Essential)), g.bySlot(a, b))
	})
	n := 0
	for n < len(all) && (g.Members[all[n]].Essential || len(g.Members)-len(all)+n < g.Min) {
		n++
	}
	return all[:n], all[n:]
}

// Minimum returns the gang without its surplus: only for that may room be held and pods be preempted. It reports whether a member of
// it must be placed.
func (g Gang) Minimum() (Gang, bool) {
	needed, surplus := g.Needed()
	if len(surplus) == 0 {
		return g, len(needed) > 0
	}
	least, without := g, setOf(surplus)
	least.Members = make([]Member, 0, len(g.Members)-len(surplus))
	for i, m := range g.Members {
		if !without[i] {
			least.Members = append(least.Members, m)
		}
	}
	least.Size, least.Min = len(least.Members), 0
	return least, len(needed) > 0
}

// needed returns how many of the members to be placed a placement must have: those that the gang needs, or one of its surplus. In the
// returned order they come first, then the others, by slot.
func (s *search) needed() (n int, order []int) {
	if s.g.Min < 1 || s.g.Min >= s.g.Size {
		return len(s.order), s.order
	}
	needed, surplus := s.g.Needed()
	return max(1, len(needed)), slices.Concat(needed, surplus)
}

// placeFewer leaves out members of the highest slots, down to the least number with which the gang can run. Members on nodes count, and are
// not separated from the rest.
func (s *search) placeFewer() bool {
	least, order := s.needed()
	all, room := s.order, min(len(s.order)-1, s.roomy())
	for _, n := range slices.Backward(s.g.cuts(least, order)) {
		if n > room {
			continue
		}
		s.order = slices.SortedFunc(slices.Values(order[:n]), s.g.bySlot)
		if s.placeByCounts() {
			return true
		}
	}
	s.order = all
	return false
}

// cuts returns how many of some members, which are in the order in which they are placed, may be placed, ascending: from the least on, so
// that no block of surplus is divided.
func (g Gang) cuts(least int, order []int) (cuts []int) {
	unit := max(1, g.Unit)
	for n := least; n < len(order); n++ {
		if g.Members[order[n-1]].Slot/unit != g.Members[order[n]].Slot/unit || unit == 1 {
			cuts = append(cuts, n)
		}
	}
	return append(cuts, len(order))
}

// roomy returns the most members that could be placed.
func (s *search) roomy() int {
	if !s.standing {
		return s.most()
	}
	if region, known := s.bounds(); known {
		return int(s.v.places[region])
	}
	return 0
}

// placeFewerMixed is placeFewer for a gang that is searched. placeFewerMixed finds the most that fit by bisection, which may miss some if
// more fit than fewer; it never goes below the least.
func (s *search) placeFewerMixed() bool {
	least, order := s.needed()
	all, deepest, mark := s.order, s.deepest, s.tree.Mark()
	s.extra = maxAsks
	fits := func(n int) bool {
		s.tree.Undo(mark)
		s.order = slices.SortedFunc(slices.Values(order[:n]), s.g.bySlot)
		return s.placeMixed()
	}
	cuts := s.g.cuts(least, order)
	low, high := 0, len(cuts)-1
	if high == 0 || !fits(cuts[low]) {
		s.order, s.deepest = all, deepest
		return false
	}
	for high-low > 1 {
		if half := (low + high) / 2; fits(cuts[half]) {
			low = half
		} else {
			high = half
		}
	}
	return fits(cuts[low])
}

// most returns the most members that a domain of the required level takes.
func (s *search) most() int {
	most := 0
	for _, d := range s.tree.Domains(s.rules.required) {
		most = max(most, int(s.v.places[d]))
	}
	return most
}

// placement returns the plan: members that were left out have no assignment.
func (s *search) placement() Placement {
	node := make(map[int]int, len(s.order))
	for k, m := range s.order {
		node[m] = s.at[k]
	}
	assignments := make([]Assignment, 0, len(s.g.Members))
	for i, m := range s.g.Members {
		assignment := Assignment{Slot: m.Slot, Member: m.Name, Node: m.Node}
		if m.Node == "" {
			at, ok := node[i]
			if !ok {
				continue
			}
			assignment.Node = s.tree.Name(at)
		}
		assignments = append(assignments, assignment)
	}
	bySlot := func(a, b Assignment) int { return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Member, b.Member)) }
	if !slices.IsSortedFunc(assignments, bySlot) {
		slices.SortStableFunc(assignments, bySlot)
	}
	return Placement{Assignments: assignments, Placed: len(s.order)}
}

func sortedCauses(m map[Cause][]string) []Cause {
	return slices.SortedFunc(maps.Keys(m), func(a, b Cause) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}
