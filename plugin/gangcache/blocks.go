package gangcache

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A gang with Terms.Unit goes on with whole blocks of consecutive slots: a block of which one member has no node is of no use. Its minimum
// counts members of blocks that all have nodes. A block that lacks a pod waits until the pod exists: none of its pods gets a node before.

// blocks is what is known of a gang's blocks.
type blocks struct {
	// lacks are the blocks that lack a pod, by number. usable counts the slots of the others.
	lacks  map[int]bool
	usable int
	// placed counts the slots of blocks all of whose slots have a node, or succeeded.
	placed int
	// since is when the youngest pending member of each block was created.
	since map[int]time.Time
}

// inBlocks returns what is known of the gang's blocks; it is computed once after each change of members.
func (g *group) inBlocks() *blocks {
	if g.blocks != nil {
		return g.blocks
	}
	g.blocks = &blocks{lacks: map[int]bool{}, since: map[int]time.Time{}}
	unit, there, on := g.terms.Unit, map[int]bool{}, map[int]bool{}
	for _, m := range g.members {
		if !m.Slot.Known || m.gated {
			continue
		}
		there[m.Slot.N] = true
		on[m.Slot.N] = on[m.Slot.N] || m.State == Reserved || m.State == Bound
		if made := m.Pod.CreationTimestamp.Time; m.State == Pending && made.After(g.blocks.since[m.Slot.N/unit]) {
			g.blocks.since[m.Slot.N/unit] = made
		}
	}
	for slot := range g.succeeded() {
		there[slot], on[slot] = true, true
	}
	for first := 0; first < g.size; first += unit {
		have, placed := 0, 0
		for slot := first; slot < first+unit; slot++ {
			have, placed = have+flag(there[slot]), placed+flag(on[slot])
		}
		if have < unit {
			g.blocks.lacks[first/unit] = true
			continue
		}
		g.blocks.usable += unit
		if placed == unit {
			g.blocks.placed += unit
		}
	}
	return g.blocks
}

// minimumPlaced reports whether the minimum of an elastic gang has nodes, so that further members only join.
func (g *group) minimumPlaced() bool {
	return g.terms.Min > 0 && g.counts[Reserved]+g.counts[Bound]+g.over() >= g.terms.Min &&
		(g.terms.Unit <= 1 || g.inBlocks().placed >= g.terms.Min)
}

// incompleteBlock reports whether the block of a member lacks a pod.
func (g *group) incompleteBlock(m *Member) bool {
	return g.terms.Unit > 1 && m.Slot.Known && g.inBlocks().lacks[m.Slot.N/g.terms.Unit]
}

// waitsSince returns since when a pending member waits: since its creation, or that of the youngest one of its block.
func (g *group) waitsSince(m *Member) time.Time {
	if g.terms.Unit > 1 && m.Slot.Known && m.State == Pending && !m.gated {
		return g.inBlocks().since[m.Slot.N/g.terms.Unit]
	}
	return m.Pod.CreationTimestamp.Time
}

// succeeded returns the slots in which a pod succeeded.
func (g *group) succeeded() map[int]bool {
	slots := map[int]bool{}
	for _, s := range g.ended {
		if s.Known {
			slots[s.N] = true
		}
	}
	return slots
}

// byBlock returns, by the number of a block, how many of its slots have a member, or had one that succeeded, and how many have a node.
func (s Snapshot) byBlock() (there, placed map[int]int) {
	slots, on := map[int]bool{}, map[int]bool{}
	for slot := range s.Succeeded {
		slots[slot], on[slot] = true, true
	}
	for _, m := range s.Members {
		slots[m.Slot.N] = true
		on[m.Slot.N] = on[m.Slot.N] || m.State != Pending
	}
	there, placed = map[int]int{}, map[int]int{}
	for slot := range slots {
		there[slot/s.Terms.Unit]++
		placed[slot/s.Terms.Unit] += flag(on[slot])
	}
	return there, placed
}

// Useful returns the number of members with a node that can train: with Terms.Unit those of blocks that all have one.
func (s Snapshot) Useful() int {
	if s.Terms.Unit <= 1 {
		return s.OnNodes()
	}
	_, placed := s.byBlock()
	n := 0
	for _, m := range s.Members {
		n += flag(m.State != Pending && placed[m.Slot.N/s.Terms.Unit] == s.Terms.Unit)
	}
	return n
}

// completing returns the pending members of the blocks that a gang needs to have its minimum in whole blocks: those that lack the fewest
// nodes, and of equal ones the first.
func (s Snapshot) completing() map[types.UID]bool {
	unit, whole, open := s.Terms.Unit, 0, []int(nil)
	there, placed := s.byBlock()
	for block, n := range there {
		switch {
		case placed[block] == unit:
			whole += unit
		case n == unit:
			open = append(open, block)
		}
	}
	slices.SortFunc(open, func(a, b int) int { return cmp.Or(cmp.Compare(placed[b], placed[a]), cmp.Compare(a, b)) })
	chosen := map[int]bool{}
	for _, block := range open {
		if whole < s.Terms.Min {
			chosen[block], whole = true, whole+unit
		}
	}
	must := map[types.UID]bool{}
	for _, m := range s.Members {
		if m.State == Pending && chosen[m.Slot.N/unit] {
			must[m.Pod.UID] = true
		}
	}
	return must
}

// Least returns how many members must be on nodes, of a gang of which so many have succeeded; 0: all.
func (s Snapshot) Least(over int) int {
	switch {
	case s.Terms.Min == 0:
		return 0
	case s.Terms.Unit > 1:
		return max(1, s.OnNodes()+len(s.completing()))
	}
	return max(1, s.Terms.Min-over)
}

// party is what joins together: the pending members of a block, or one alone. role has the roles of all: where one party has no room, no
// other of the same roles has. last is the member that began to wait last.
type party struct {
	role string
	last *Member
}

// parties returns the party of each of some pending members.
func (g *group) parties(waiting []Member) (of map[types.UID]*party, all []*party) {
	of = map[types.UID]*party{}
	blocks := map[int]*party{}
	for i := range waiting {
		m := &waiting[i]
		p := &party{role: m.Role, last: m}
		if g.terms.Unit > 1 && m.Slot.Known {
			block := m.Slot.N / g.terms.Unit
			if together := blocks[block]; together != nil {
				together.role += "\n" + m.Role
				if g.byLead(*together.last, *m) < 0 {
					together.last = m
				}
				of[m.Pod.UID] = together
				continue
			}
			blocks[block] = p
		}
		of[m.Pod.UID] = p
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b *party) int { return g.byLead(*a.last, *b.last) })
	return of, all
}
