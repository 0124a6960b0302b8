package planner

import "holdfast.dev/holdfast/topology"

// mostGained is the most nodes that are remembered.
const mostGained = 4096

// gained lists the nodes whose free room may have grown, in order. A refusal holds until such a node could help the gang: all other changes
// only take room.
type gained struct {
	nodes []string
	// before is the number of nodes that were dropped from the list.
	before int
}

// now is the number of nodes so far.
func (g *gained) now() int { return g.before + len(g.nodes) }

func (g *gained) add(nodes ...string) {
	g.nodes = append(g.nodes, nodes...)
	if over := len(g.nodes) - mostGained; over > 0 {
		g.nodes, g.before = append([]string(nil), g.nodes[over+mostGained/2:]...), g.before+over+mostGained/2
	}
}

// all records that every node may have changed.
func (g *gained) all() { g.nodes, g.before = nil, g.now()+1 }

// since returns the nodes after the first n; ok is false if some of them were dropped.
func (g *gained) since(n int) (nodes []string, ok bool) {
	if n < g.before {
		return nil, false
	}
	return g.nodes[n-g.before:], true
}

// refused is a gang's last refusal, and what may change it.
type refused struct {
	version, pending int
	// seen is gained.now at the refusal.
	seen int
	// wanted members are to be placed, at most fit would fit. counted: fit grows by what a gained node takes at most.
	wanted, fit int
	counted     bool
	// any: each gained node may change it. So may time: the gang is planned again after until, in nanoseconds.
	any   bool
	until int64
	roles []topology.Resources
}

// recheck adds what nodes gained since take at most, and reports whether the refusal still holds.
func (r *refused) recheck(g *gained, tree *topology.Tree, version, pending int, now int64) bool {
	nodes, ok := g.since(r.seen)
	if !ok || r.version != version || r.pending != pending || r.until > 0 && now >= r.until || r.any && len(nodes) > 0 {
		return false
	}
	for _, name := range nodes {
		i, there := tree.Find(name)
		if !there {
			continue
		}
		for _, asks := range r.roles {
			r.fit += tree.Room(i, asks, r.wanted)
			if room := tree.Room(i, asks, 1) > 0; room && (!r.counted || r.fit >= r.wanted) {
				return false
			}
		}
	}
	r.seen = g.now()
	return true
}

// noteFreed records nodes on which plans and reservations released room.
func (p *Planner) noteFreed() {
	p.gained.add(p.config.Gangs.TakeReleased()...)
	if p.config.TakeFreed != nil {
		p.gained.add(p.config.TakeFreed()...)
	}
}
