// Package preemption decides which units are preempted so that a gang fits. The caller lists the units that may be
// preempted.
//
//   - Units are preempted only if the gang then fits, and only as a whole.
//   - No more pods are evicted than each disruption budget allows.
//   - The selection with the least lost work that the search finds is returned. The search is bounded;
//     Selection.Truncated reports that it reached its bound.
//   - The same values give the same answer.
//
// The package also computes the room that a gang waits for and which pods may use it meanwhile (Reserve and Holding:
// backfill), and which moves would free a domain of the fabric (Defragment). docs/designs/priority.md has the reasons.
package preemption

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// World is the cluster without any of Units.
type World struct {
	Levels []topology.Level
	Nodes  []topology.Node
	// Units are the preemptible ones; all other pods are counted in Nodes.
	Units []Unit
	// Allowed is how many pods each disruption budget allows to be evicted now.
	Allowed []int
}

// Unit is a whole gang or one pod, preempted as one.
type Unit struct {
	// Name is for messages, such as "gang ns/train"; it is unique in a World.
	Name     string
	Priority int32
	// LostWork is the work lost by preempting the unit, in device seconds; at least 1 is counted.
	LostWork int64
	// Terminating: it is already being deleted, and costs nothing.
	Terminating bool
	// End is the unit's declared end; zero: unknown.
	End time.Time
	// Budgets counts its pods by disruption budget, an index in World.Allowed.
	Budgets map[int]int
	Pods    []Pod
}

// Pod is what one pod of a unit uses on its node.
type Pod struct {
	Node      string
	Resources topology.Resources
	// Devices: it uses devices, so that the node counts as used.
	Devices bool
	// Tenant, Exclusive, Spares and SparesAt are as in topology.Node.
	Tenant, Exclusive bool
	Spares            int
	SparesAt          string
}

// index has nodes of a World by name, and the pods of units by node.
type index struct {
	nodes map[string]int
	pods  map[string][]podRef
}

func (w *World) index() *index {
	x := &index{nodes: make(map[string]int, len(w.Nodes)), pods: map[string][]podRef{}}
	for i := range w.Nodes {
		x.nodes[w.Nodes[i].Name] = i
	}
	for u := range w.Units {
		for p := range w.Units[u].Pods {
			node := w.Units[u].Pods[p].Node
			x.pods[node] = append(x.pods[node], podRef{u, p})
		}
	}
	return x
}

// world is a World that changes: units are put on and taken off in a tree of some of its nodes.
type world struct {
	of   *World
	tree *topology.Tree
	base map[string]*topology.Node
	// here[u] are the pods of a unit on these nodes; on are the units that are on a node now.
	here map[int][]int
	on   map[string][]podRef
}

type podRef struct{ unit, pod int }

// all returns the world of all nodes.
func (w *World) all(by *index) *world {
	names := make([]string, len(w.Nodes))
	for i := range w.Nodes {
		names[i] = w.Nodes[i].Name
	}
	return w.within(by, names)
}

// within returns the world of some nodes. Its cost depends only on these and their pods, so many domains can be searched.
func (w *World) within(by *index, names []string) *world {
	x := &world{of: w, base: make(map[string]*topology.Node, len(names)), here: map[int][]int{}, on: make(map[string][]podRef, len(names))}
	nodes := make([]topology.Node, 0, len(names))
	for _, name := range names {
		n := &w.Nodes[by.nodes[name]]
		nodes, x.base[name] = append(nodes, *n), n
		for _, h := range by.pods[name] {
			x.here[h.unit] = append(x.here[h.unit], h.pod)
		}
	}
	x.tree = topology.New(w.Levels, nodes...)
	return x
}

// put puts a unit on its nodes, take removes it.
func (x *world) put(u int) {
	for _, p := range x.here[u] {
		node := x.of.Units[u].Pods[p].Node
		x.on[node] = append(x.on[node], podRef{u, p})
		x.set(node)
	}
}

func (x *world) take(u int) {
	for _, p := range x.here[u] {
		node := x.of.Units[u].Pods[p].Node
		x.on[node] = slices.DeleteFunc(x.on[node], func(h podRef) bool { return h == podRef{u, p} })
		x.set(node)
	}
}

// set updates a node in the tree for the units that are on it now.
func (x *world) set(name string) {
	n := *x.base[name]
	free := make(topology.Resources, len(n.Free))
	maps.Copy(free, n.Free)
	n.Free = free
	for _, h := range x.on[name] {
		p := &x.of.Units[h.unit].Pods[h.pod]
		for what, v := range p.Resources {
			free[what] -= v
		}
		n.Used = n.Used || p.Devices
		n.Exclusive = n.Exclusive || p.Exclusive
		if p.Tenant {
			n.Tenants++
		}
		if p.Spares > n.Spares {
			n.Spares, n.SparesAt = p.Spares, p.SparesAt
		}
	}
	x.tree.Set(n)
}

// unitsHere returns the units with pods on these nodes, by number.
func (x *world) unitsHere() []int {
	return slices.Sorted(maps.Keys(x.here))
}

// Cost is what a selection of victims loses; less is better.
type Cost struct {
	// Lost is the work lost by priority, the highest first.
	Lost []Loss
	Pods int
}

// Loss is work lost by units of one priority.
type Loss struct {
	Priority int32
	LostWork int64
}

func (c Cost) with(u *Unit) Cost {
	lost := slices.Clone(c.Lost)
	at, found := slices.BinarySearchFunc(lost, u.Priority, func(l Loss, p int32) int { return cmp.Compare(p, l.Priority) })
	if !found {
		lost = slices.Insert(lost, at, Loss{Priority: u.Priority})
	}
	lost[at].LostWork += max(1, u.LostWork)
	return Cost{Lost: lost, Pods: c.Pods + len(u.Pods)}
}

// Compare is negative if c is lower.
func (c Cost) Compare(d Cost) int {
	for i := 0; i < len(c.Lost) || i < len(d.Lost); i++ {
		switch {
		case i >= len(c.Lost):
			return -1
		case i >= len(d.Lost):
			return 1
		case c.Lost[i].Priority != d.Lost[i].Priority:
			return cmp.Compare(c.Lost[i].Priority, d.Lost[i].Priority)
		case c.Lost[i].LostWork != d.Lost[i].LostWork:
			return cmp.Compare(c.Lost[i].LostWork, d.Lost[i].LostWork)
		}
	}
	return cmp.Compare(c.Pods, d.Pods)
}

// assignments returns the new assignments of a placement of g.
func assignments(g *gang.Gang, p gang.Placement) []gang.Assignment {
	stands := make(map[string]bool, len(g.Members))
	for _, m := range g.Members {
		if m.Node != "" {
			stands[m.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(p.Assignments), func(s gang.Assignment) bool { return stands[s.Member] })
}

// DomainOf returns the narrowest domain of all assignments, with its level, such as "rack a/r1"; empty: none.
func DomainOf(tree *topology.Tree, assignments []gang.Assignment) string {
	common := -1
	for _, s := range assignments {
		i, ok := tree.Find(s.Node)
		if !ok {
			return ""
		}
		d := tree.Leaf(i)
		if common < 0 {
			common = d
		}
		for common != d {
			if tree.LevelOf(common) >= tree.LevelOf(d) {
				common = tree.Parent(common)
			} else {
				d = tree.Parent(d)
			}
		}
	}
	for common > topology.Root && !tree.Named(common) {
		common = tree.Parent(common)
	}
	if common <= topology.Root {
		return ""
	}
	return tree.Levels()[tree.LevelOf(common)].Name + " " + tree.Path(common)
}
