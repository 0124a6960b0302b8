package gang

import (
	"fmt"
	"testing"
	"time"

	"holdfast.dev/holdfast/topology"
)

const (
	gpu = "nvidia.com/gpu"
	// An NVL72 cluster: a domain has 18 nodes of 4 GPUs, a block 20 domains.
	nodesPerDomain, domainsPerBlock, blocksPerZone = 18, 20, 16
)

var benchLevels = []topology.Level{{Name: "zone", Key: "topology.kubernetes.io/zone"}, {Name: "block", Key: "block"}, {Name: "nvlink", Key: "nvidia.com/gpu.clique"}}

var benchPod = topology.Resources{"cpu": 64_000, "memory": 512 << 30, gpu: 4, "pods": 1}

// cluster returns n nodes in three levels. Every busy-th node is in use; 0: none is.
func cluster(n, busy int) []topology.Node {
	nodes := make([]topology.Node, n)
	for i := range nodes {
		domain := i / nodesPerDomain
		block := domain / domainsPerBlock
		nodes[i] = topology.Node{
			Name:   fmt.Sprintf("node-%06d", i),
			Domain: []string{fmt.Sprintf("zone-%02d", block/blocksPerZone), fmt.Sprintf("block-%04d", block), fmt.Sprintf("clique-%05d", domain)},
			Free:   topology.Resources{"cpu": 144_000, "memory": 900 << 30, gpu: 4, "pods": 100, "ephemeral-storage": 1 << 40},
		}
		if busy > 0 && i%busy == 0 {
			nodes[i].Free[gpu], nodes[i].Used = 0, true
		}
	}
	return nodes
}

// gangOf returns a gang of n pods. The first pods are on the given nodes.
func gangOf(n int, ask Topology, stand ...string) Gang {
	g := Gang{Size: n, Topology: ask, Roles: []Role{{Requests: benchPod, Out: map[string]Cause{}}}}
	for i := range n {
		m := Member{Slot: i, Name: fmt.Sprintf("pod-%06d", i)}
		if i < len(stand) {
			m.Node = stand[i]
		}
		g.Members = append(g.Members, m)
	}
	return g
}

// question is a gang on a tree, whether the gang should fit, and how long the answer may take; 0: no limit.
type question struct {
	name  string
	nodes []topology.Node
	g     Gang
	fits  bool
	goal  time.Duration
}

func questions(small, large []topology.Node) []question {
	sliced := Topology{SliceLevel: "nvlink", Block: 4, Spares: 2}
	broken := cluster(len(small), 7)
	for i := range broken {
		if i%18 > 7 {
			broken[i].Free[gpu], broken[i].Used = 0, true
		}
	}
	out := gangOf(1000, Topology{})
	for i := range small {
		if i%10 != 0 {
			out.Roles[0].Out[small[i].Name] = Cause{Kind: Kind(1 + i%4), Name: "x"}
		}
	}
	return []question{
		{"1000 pods, 5000 nodes", small, gangOf(1000, Topology{}), true, 10 * time.Millisecond},
		{"1000 pods, 5000 nodes, every 3rd taken", cluster(len(small), 3), gangOf(1000, Topology{}), true, 0},
		{"1000 pods in equal slices, 2 spares, 5000 nodes", small, gangOf(1000, sliced), true, 0},
		{"24 pods in 12+12, 5000 nodes, every 7th taken", cluster(len(small), 7), gangOf(24, sliced), true, 0},
		{"1000 pods, 100000 nodes", large, gangOf(1000, Topology{}), true, 100 * time.Millisecond},
		{"1000 pods in equal slices, 2 spares, 100000 nodes", large, gangOf(1000, sliced), true, 0},
		{"24 pods, 100000 nodes", large, gangOf(24, Topology{}), true, 0},
		{"replace one of 1000, 5000 nodes", small, lost(small), true, 1 * time.Millisecond},
		{"replace one of 1000, 100000 nodes", large, lost(large), true, 0},
		{"no: 9 of 10 of 5000 nodes ruled out", small, out, false, 20 * time.Millisecond},
		{"launcher and 999 workers, 5000 nodes, every 3rd taken", cluster(len(small), 3), launched(1000), true, 0},
		{"no: launcher and 999 workers, 9 of 10 of 5000 nodes taken", free(cluster(len(small), 1), 10), launched(1000), false, 0},
		{"no: no domain takes its slice, 5000 nodes", broken, gangOf(1000, Topology{SliceLevel: "nvlink", SliceSize: 10}), false, 0},
	}
}

// launched is gangOf with a first pod that requests no GPUs.
func launched(n int) Gang {
	g := gangOf(n, Topology{})
	g.Roles = append(g.Roles, Role{Requests: topology.Resources{"cpu": 4_000, "memory": 16 << 30, "pods": 1}, Out: map[string]Cause{}})
	g.Members[0].Role = 1
	return g
}

// free frees every n-th node.
func free(nodes []topology.Node, n int) []topology.Node {
	for i := 0; i < len(nodes); i += n {
		nodes[i].Free[gpu], nodes[i].Used = 4, false
	}
	return nodes
}

// lost returns a gang of 1000 pods on the first nodes, whose member 500 must be placed again.
func lost(nodes []topology.Node) Gang {
	var names []string
	for i := range 1000 {
		names = append(names, nodes[i].Name)
	}
	names[500] = ""
	return gangOf(1000, Topology{}, names...)
}

// standing takes from a tree the resources that members on nodes use.
func standing(q question) *topology.Tree {
	nodes := append([]topology.Node(nil), q.nodes...)
	at := map[string]bool{}
	for _, m := range q.g.Members {
		at[m.Node] = true
	}
	for i, n := range nodes {
		if at[n.Name] {
			nodes[i].Free, nodes[i].Used = topology.Resources{}, true
		}
	}
	return topology.New(benchLevels, nodes...)
}

// BenchmarkPlace measures Place without filters. warm: on a tree that exists, as in the scheduler. cold: the tree and its counts are built
// each time. scan, for comparison: one visit of every node that counts those with room.
func BenchmarkPlace(b *testing.B) {
	for _, q := range questions(cluster(5000, 0), cluster(100_000, 0)) {
		place := func(b *testing.B, tree *topology.Tree) {
			if _, no := Place(tree, q.g); (no == nil) != q.fits {
				b.Fatalf("it is to fit: %t, the answer is %+v", q.fits, no)
			}
		}
		tree := standing(q)
		b.Run(q.name+"/warm", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				place(b, tree)
			}
			if took := b.Elapsed() / time.Duration(b.N); q.goal > 0 && took > q.goal && b.N > 1 {
				b.Errorf("%s, the goal is at most %s", took, q.goal)
			}
		})
		b.Run(q.name+"/cold", func(b *testing.B) {
			for b.Loop() {
				place(b, standing(q))
			}
		})
		b.Run(q.name+"/scan", func(b *testing.B) {
			for b.Loop() {
				if n := scan(q.nodes); n > len(q.nodes) {
					b.Fatalf("%d of %d nodes have room", n, len(q.nodes))
				}
			}
		})
	}
}

// scan counts the nodes with room for one pod, as a planner without state would.
func scan(nodes []topology.Node) (room int) {
	for i := range nodes {
		fits := true
		for name, need := range benchPod {
			fits = fits && nodes[i].Free[name] >= need
		}
		if fits {
			room++
		}
	}
	return room
}
