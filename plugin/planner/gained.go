package planner

import "holdfast.dev/holdfast/topology"

// mostGained bounds how many nodes that gained are remembered.
const mostGained = 4096

// gained lists the nodes that may take more than they did, in the order in which that was seen. A refusal holds as long as no
// node gained that the gang could use: all else only takes room.
type gained struct {
	nodes []string
	// before is how many are not remembered any more.
	before int
}

// now is how many nodes gained up to now.
func (g *gained) now() int { return g.before + len(g.nodes) }

func (g *gained) add(nodes ...string) {
	g.nodes = append(g.nodes, nodes...)
	if over := len(g.nodes) - mostGained; over > 0 {
		g.nodes, g.before = append([]string(nil), g.nodes[over+mostGained/2:]...), g.before+over+mostGained/2
	}
}

// all notes that anything may be otherwise than it was.
func (g *gained) all() { g.nodes, g.before = nil, g.now()+1 }

// since lists the nodes that gained after a number of others had; ok is false where that is not known any more.
func (g *gained) since(n int) (nodes []string, ok bool) {
	if n < g.before {
		return nil, false
	}
	return g.nodes[n-g.before:], true
}

// refused is a gang's last answer, and what it takes to make it another one.
type refused struct {
	version, pending int
	// seen is how many nodes had gained by then.
	seen int
	// wanted members are to be placed, no more than fit could be. counted: fit grows by what a node that gained takes at most.
	wanted, fit int
	counted     bool
	// any node that gains may change it, whatever fits there; so may time: then it is asked again after until, in nanoseconds.
	any   bool
	until int64
	roles []topology.Resources
}

// recheck counts what nodes that gained since take at most, and reports whether the answer is the same still.
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

// noteFreed notes where room was given back that nodes do not show.
func (p *Planner) noteFreed() {
	p.gained.add(p.config.Gangs.TakeReleased()...)
	if p.config.TakeFreed != nil {
		p.gained.add(p.config.TakeFreed()...)
	}
}
