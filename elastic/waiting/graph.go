package waiting

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// judge finds the verdict on one gang.
type judge struct {
	ranks  []Rank
	facts  []fact
	groups []*group
	// waits are the edges of the graph: first the ranks, then further nodes that stand for "those who have not begun this operation", so
	// that the graph has a few edges per rank and group.
	waits [][]edge
	// released ranks wait for nobody although they have an open operation: they are known to be elsewhere.
	released []bool
	// together ranks are in an operation that all its members have begun.
	together []bool
	// noted is what NCCL's RAS shows of ranks that are in such an operation.
	noted map[int]protocol.Fault
}

// edge leads to a rank or node that is waited for. An edge is certain if the recorders of both sides show it.
type edge struct {
	to      int
	certain bool
}

// group is one process group, as the recorders of its members have it.
type group struct {
	name    string
	entries []entry
	// level is, by rank, the number of the operation that a member is in or has completed last; members without a look are missing.
	level map[int]int64
}

// entry is one member that reported the group.
type entry struct {
	rank int
	*protocol.GroupLook
}

// collect gathers the groups. Together they may have only so many members: a rank that is a member of more groups than a look has room for
// is forged.
func (j *judge) collect() {
	byKey, room := map[string]*group{}, len(j.ranks)*protocol.MaxLookGroups
	for r := range j.facts {
		f := &j.facts[r]
		if f.last == nil {
			continue
		}
		for i := range f.last.Groups {
			g := &f.last.Groups[i]
			key := fmt.Sprint(g.Name, g.Ranks)
			known := byKey[key]
			if known == nil {
				if len(g.Ranks) == 0 {
					continue // its members are unknown
				}
				members := slices.Collect(g.Members(len(j.ranks)))
				if room -= len(members); room < 0 {
					continue
				}
				known = &group{name: g.Name, level: j.levels(members)}
				byKey[key], j.groups = known, append(j.groups, known)
			}
			if _, member := known.level[r]; member {
				known.entries = append(known.entries, entry{r, g})
				known.level[r] = level(g)
			}
		}
	}
}

// unknownLevel: no look shows how far a member is.
const unknownLevel = -1

// levels returns the levels of members before their looks are read: one that has a look, and not this group, has begun nothing there.
func (j *judge) levels(members []int) map[int]int64 {
	out := make(map[int]int64, len(members))
	for _, r := range members {
		f := &j.facts[r]
		switch {
		case j.ranks[r].Ended:
			out[r] = 0
		case f.last == nil, f.waitsByStack(), len(f.last.Groups) >= protocol.MaxLookGroups:
			out[r] = unknownLevel
		default:
			out[r] = 0
		}
	}
	return out
}

// level returns the number of the operation that a member is in, or has completed last.
func level(g *protocol.GroupLook) int64 {
	if o := open(g); o != nil && !o.P2P {
		return o.Seq
	}
	return max(0, g.Enqueued)
}

// connect builds the graph.
func (j *judge) connect() {
	n := len(j.ranks)
	j.waits, j.together = make([][]edge, n), make([]bool, n)
	if j.released == nil {
		j.released = make([]bool, n)
	}
	for _, g := range j.groups {
		j.connectGroup(g)
	}
	j.connectStacks()
}

// node adds a node that stands for several ranks.
func (j *judge) node(to []edge) int {
	j.waits = append(j.waits, to)
	return len(j.waits) - 1
}

// stands reports whether a rank stands still in its operations, so that it waits for their members.
func (j *judge) stands(r int) bool { return !j.released[r] && !j.facts[r].steps && !j.ranks[r].Ended }

// connectGroup adds who waits for whom in one group. The nodes of its operations form a chain, because who has not begun one has begun no
// later one.
func (j *judge) connectGroup(g *group) {
	byLevel := make([]int, 0, len(g.level))
	for r := range g.level {
		byLevel = append(byLevel, r)
	}
	slices.SortFunc(byLevel, func(a, b int) int { return cmp.Or(cmp.Compare(g.level[a], g.level[b]), cmp.Compare(a, b)) })
	inOpen := map[int64][]int{}
	numbers := []int64{}
	for _, s := range g.entries {
		o := open(s.GroupLook)
		switch {
		case o == nil || !j.stands(s.rank):
		case o.P2P:
			j.connectPair(g, s, o)
		default:
			if inOpen[o.Seq] == nil {
				numbers = append(numbers, o.Seq)
			}
			inOpen[o.Seq] = append(inOpen[o.Seq], s.rank)
		}
	}
	slices.Sort(numbers)
	node, next := -1, 0
	for _, number := range numbers {
		late := []edge{}
		if node >= 0 {
			late = append(late, edge{node, true})
		}
		for ; next < len(byLevel) && g.level[byLevel[next]] < number; next++ {
			r := byLevel[next]
			late = append(late, edge{r, g.level[r] != unknownLevel})
		}
		if node < 0 && len(late) == 0 {
			for _, r := range inOpen[number] {
				j.together[r] = true
			}
			continue
		}
		if len(late) > 0 && !(node >= 0 && len(late) == 1) {
			node = j.node(late)
		}
		for _, r := range inOpen[number] {
			j.waits[r] = append(j.waits[r], edge{node, true})
		}
	}
}

// connectPair adds for whom one side of a point-to-point operation waits: the peer, unless it is in the same operation. Whether a peer that
// is elsewhere has not begun it or has completed it is not known.
func (j *judge) connectPair(g *group, s entry, o *protocol.Operation) {
	if _, member := g.level[o.Peer]; !member || o.Peer == s.rank {
		return
	}
	k := slices.IndexFunc(g.entries, func(p entry) bool { return p.rank == o.Peer })
	if k >= 0 {
		if back := open(g.entries[k].GroupLook); back != nil && back.P2P && back.Peer == s.rank && j.stands(o.Peer) {
			if direction(back) != direction(o) || direction(o) == "" {
				j.together[s.rank] = true
				return
			}
			j.waits[s.rank] = append(j.waits[s.rank], edge{o.Peer, true})
			return
		}
	}
	j.waits[s.rank] = append(j.waits[s.rank], edge{o.Peer, false})
}

// direction returns whether an operation sends or receives; "": unknown.
func direction(o *protocol.Operation) string {
	for _, d := range []string{"send", "recv"} {
		if strings.Contains(strings.ToLower(o.Name), d) {
			return d
		}
	}
	return ""
}

// connectStacks adds for whom ranks wait by their stacks alone, or in an operation of a group whose members are unknown: for one of those
// that do not, and that are in no operation.
func (j *judge) connectStacks() {
	var by []int
	var free []edge
	for r := range j.facts {
		f, placed := &j.facts[r], len(j.waits[r]) > 0 || j.together[r]
		switch {
		case f.waitsByStack() && !j.released[r], f.hasOpen() && j.stands(r) && !placed:
			by = append(by, r)
		case !placed:
			free = append(free, edge{r, false})
		}
	}
	if len(by) == 0 {
		return
	}
	if len(free) == 0 { // they wait for one that waits itself
		for r := range j.facts {
			if _, waits := slices.BinarySearch(by, r); !waits {
				free = append(free, edge{r, false})
			}
		}
	}
	if len(free) == 0 {
		for _, r := range by {
			j.together[r] = true
		}
		return
	}
	node := j.node(free)
	for _, r := range by {
		j.waits[r] = append(j.waits[r], edge{node, false})
	}
}
