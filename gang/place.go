package gang

import (
	"cmp"
	"maps"
	"slices"

	"holdfast.dev/holdfast/topology"
)

// maxTries bounds the search for a gang of several shapes, in nodes looked at beyond the first pass.
const maxTries = 50_000

// Place answers for the whole gang. The tree is as it was when Place returns.
//
// A gang of one shape is placed on as few nodes as possible; its answer is exact. A gang of several shapes
// is searched with backtracking, up to maxTries. Slots follow the tree's order, so that neighbours by slot
// are neighbours in the fabric.
func Place(tree *topology.Tree, g Gang) (Placement, *Refusal) {
	if exist := len(g.Members); exist < g.Size {
		r := Incomplete(Census{Size: g.Size, Exist: exist, Bound: exist - len(g.missing())})
		return Placement{}, &r
	}
	s := search{tree: tree, g: g, order: g.missing(), tries: maxTries + len(g.Members)*max(tree.Len(), 1)}
	defer tree.Undo(tree.Mark())
	if s.oneShape() {
		if !s.fill() {
			return Placement{}, s.refuse()
		}
		return s.placement(), nil
	}
	s.hardestFirst()
	if !s.descend(0) {
		tree.Undo(0)
		return Placement{}, s.refuse()
	}
	return s.placement(), nil
}

// missing lists the members to be placed, by slot and name.
func (g Gang) missing() []int {
	var missing []int
	for i, m := range g.Members {
		if m.Node == "" {
			missing = append(missing, i)
		}
	}
	slices.SortFunc(missing, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.Members[a].Slot, g.Members[b].Slot), cmp.Compare(g.Members[a].Name, g.Members[b].Name))
	})
	return missing
}

type search struct {
	tree *topology.Tree
	g    Gang
	// order lists the members to be placed, in the order in which that is tried.
	order []int
	// at[k] is the node of order[k]; seats says the same for Agree.
	at    []int
	seats []Seat
	// deepest is the most members that ever stood at once.
	deepest int
	tries   int
}

func (s *search) oneShape() bool {
	for _, m := range s.order {
		if s.g.Members[m].Role != s.g.Members[s.order[0]].Role {
			return false
		}
	}
	return s.g.Agree == nil
}

// room is how many members of a role the i-th node takes now.
func (s *search) room(i, role, limit int) int {
	r := s.g.Roles[role]
	if r.OutAll != nil {
		return 0
	}
	if _, out := r.Out[s.tree.Name(i)]; out {
		return 0
	}
	return s.tree.Room(i, r.Requests, limit)
}

// fill places members of one shape: the roomiest nodes first, and for what remains the tightest node that
// takes all of it.
func (s *search) fill() bool {
	left := len(s.order)
	if left == 0 {
		return true
	}
	role := s.g.Members[s.order[0]].Role
	type offer struct{ node, room int }
	var offers []offer
	for i := range s.tree.Len() {
		if room := s.room(i, role, left); room > 0 {
			offers = append(offers, offer{i, room})
			s.deepest += room
		}
	}
	s.deepest = min(s.deepest, left)
	if s.deepest < left {
		return false
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(b.room, a.room) })
	for k := 0; left > 0; k++ {
		last := k
		for j := k; j < len(offers) && offers[j].room >= left; j++ {
			if offers[j].room < offers[last].room {
				last = j
			}
		}
		n := min(offers[last].room, left)
		for range n {
			s.at = append(s.at, offers[last].node)
		}
		left -= n
	}
	slices.Sort(s.at)
	return true
}

// hardestFirst puts members of the role with the fewest places first.
func (s *search) hardestFirst() {
	places := make([]int, len(s.g.Roles))
	for role := range s.g.Roles {
		for i := range s.tree.Len() {
			places[role] += s.room(i, role, len(s.order))
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		ra, rb := s.g.Members[a].Role, s.g.Members[b].Role
		return cmp.Or(cmp.Compare(places[ra], places[rb]), cmp.Compare(ra, rb))
	})
}

// descend places order[k] and all after it, or leaves everything as it was.
func (s *search) descend(k int) bool {
	s.deepest = max(s.deepest, k)
	if k == len(s.order) {
		return true
	}
	m := s.g.Members[s.order[k]]
	for i := s.from(k); i < s.tree.Len(); i++ {
		if s.tries--; s.tries < 0 {
			return false
		}
		if s.room(i, m.Role, 1) == 0 || !s.agree(k, i) {
			continue
		}
		mark := s.tree.Mark()
		s.tree.Take(i, s.g.Roles[m.Role].Requests)
		s.at, s.seats = append(s.at, i), append(s.seats, Seat{Slot: m.Slot, Member: m.Name, Node: s.tree.Name(i)})
		if s.descend(k + 1) {
			return true
		}
		s.at, s.seats = s.at[:k], s.seats[:k]
		s.tree.Undo(mark)
	}
	return false
}

// from is where order[k] starts to look: equal members need not be tried in every order.
func (s *search) from(k int) int {
	if k == 0 || s.g.Agree != nil || s.g.Members[s.order[k]].Role != s.g.Members[s.order[k-1]].Role {
		return 0
	}
	return s.at[k-1]
}

func (s *search) agree(k, node int) bool {
	if s.g.Agree == nil {
		return true
	}
	_, ok := s.g.Agree(s.order[k], s.tree.Name(node), slices.Clip(s.seats))
	return ok
}

func (s *search) placement() Placement {
	seats := make([]Seat, len(s.g.Members))
	for i, m := range s.g.Members {
		seats[i] = Seat{Slot: m.Slot, Member: m.Name, Node: m.Node}
	}
	for k, m := range s.order {
		seats[m].Node = s.tree.Name(s.at[k])
	}
	slices.SortStableFunc(seats, func(a, b Seat) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Member, b.Member))
	})
	return Placement{Seats: seats, Placed: len(s.order)}
}

// refuse says why not, for the role of the first member that found no place.
func (s *search) refuse() *Refusal {
	blocked := s.g.Members[s.order[min(s.deepest, len(s.order)-1)]].Role
	r := insufficientNodes(s.tree, s.g, len(s.order), s.deepest, blocked)
	if s.g.Agree != nil {
		s.disagreements(r, blocked)
	}
	if s.tries < 0 {
		r.Message += "; the search was stopped at its limit"
	}
	return r
}

// disagreements adds nodes which are refused to the blocked role by Agree even with nobody else placed.
func (s *search) disagreements(r *Refusal, blocked int) {
	asked := slices.IndexFunc(s.order, func(m int) bool { return s.g.Members[m].Role == blocked })
	for i := range s.tree.Len() {
		if s.room(i, blocked, 1) == 0 {
			continue
		}
		if cause, ok := s.g.Agree(s.order[asked], s.tree.Name(i), nil); !ok {
			r.Excluded[cause] = append(r.Excluded[cause], s.tree.Name(i))
		}
	}
	r.Message = r.text(s.g, s.g.Roles[blocked])
}

func sortedCauses(m map[Cause][]string) []Cause {
	return slices.SortedFunc(maps.Keys(m), func(a, b Cause) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}
