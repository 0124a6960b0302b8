// Bench-plan measures planning alone: gang.Place on an existing tree, with eligibility known, as the scheduler calls
// it; and the same cold, with the tree and its counts rebuilt.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/topology"
)

const (
	gpu = "nvidia.com/gpu"
	// rounds is how many samples a row has, quickRounds in a quick run.
	rounds, quickRounds = 30, 3
	// nodesPerDomain and domainsPerBlock are those of an NVL72 cluster: 18 nodes of 4 GPUs, 20 of them in a block.
	nodesPerDomain, domainsPerBlock, blocksPerZone = 18, 20, 16
)

var levels = []topology.Level{{Name: "zone", Key: "topology.kubernetes.io/zone"}, {Name: "block", Key: "block"}, {Name: "nvlink", Key: "nvidia.com/gpu.clique"}}

var shape = topology.Resources{"cpu": 64_000, "memory": 512 << 30, gpu: 4, "pods": 1}

// cluster is n nodes in three levels; every busy-th is taken, 0: none.
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

// of is a gang of n pods, the first stand on nodes already.
func of(n int, ask gang.Topology, stand ...string) gang.Gang {
	g := gang.Gang{Size: n, Topology: ask, Roles: []gang.Role{{Requests: shape, Out: map[string]gang.Cause{}}}}
	for i := range n {
		m := gang.Member{Slot: i, Name: fmt.Sprintf("pod-%06d", i)}
		if i < len(stand) {
			m.Node = stand[i]
		}
		g.Members = append(g.Members, m)
	}
	return g
}

// question is one row: a gang on a tree, and whether it is to fit.
type question struct {
	name  string
	nodes []topology.Node
	g     gang.Gang
	fits  bool
}

func questions(small, large []topology.Node) []question {
	sliced := gang.Topology{SliceLevel: "nvlink", Block: 4, Spares: 2}
	broken := cluster(len(small), 7)
	for i := range broken {
		if i%18 > 7 {
			broken[i].Free[gpu], broken[i].Used = 0, true
		}
	}
	out := of(1000, gang.Topology{})
	for i := range small {
		if i%10 != 0 {
			out.Roles[0].Out[small[i].Name] = gang.Cause{Kind: gang.Kind(1 + i%4), Name: "x"}
		}
	}
	return []question{
		{"1000 pods, 5000 nodes", small, of(1000, gang.Topology{}), true},
		{"1000 pods, 5000 nodes, every 3rd taken", cluster(len(small), 3), of(1000, gang.Topology{}), true},
		{"1000 pods in equal slices, 2 spares, 5000 nodes", small, of(1000, sliced), true},
		{"24 pods in 12+12, 5000 nodes, every 7th taken", cluster(len(small), 7), of(24, sliced), true},
		{"1000 pods, 100000 nodes", large, of(1000, gang.Topology{}), true},
		{"1000 pods in equal slices, 2 spares, 100000 nodes", large, of(1000, sliced), true},
		{"24 pods, 100000 nodes", large, of(24, gang.Topology{}), true},
		{"replace one of 1000, 5000 nodes", small, lost(small), true},
		{"replace one of 1000, 100000 nodes", large, lost(large), true},
		{"no: 9 of 10 of 5000 nodes ruled out", small, out, false},
		{"launcher and 999 workers, 5000 nodes, every 3rd taken", cluster(len(small), 3), launched(1000), true},
		{"no: launcher and 999 workers, 9 of 10 of 5000 nodes taken", free(cluster(len(small), 1), 10), launched(1000), false},
		{"no: no domain takes its slice, 5000 nodes", broken, of(1000, gang.Topology{SliceLevel: "nvlink", SliceSize: 10}), false},
	}
}

// launched is of whose first pod asks for no GPUs.
func launched(n int) gang.Gang {
	g := of(n, gang.Topology{})
	g.Roles = append(g.Roles, gang.Role{Requests: topology.Resources{"cpu": 4_000, "memory": 16 << 30, "pods": 1}, Out: map[string]gang.Cause{}})
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

// lost is a gang of 1000 on the first nodes, of which member 500 is to be placed anew.
func lost(nodes []topology.Node) gang.Gang {
	var names []string
	for i := range 1000 {
		names = append(names, nodes[i].Name)
	}
	names[500] = ""
	return of(1000, gang.Topology{}, names...)
}

// standing takes from a tree what members hold that stand already.
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
	return topology.New(levels, nodes...)
}

const (
	benchName      = "plan"
	systemHoldfast = "holdfast"
	// systemScan looks once at every node and counts those with room for a pod: what a planner does that remembers nothing.
	systemScan = "scan"
	warm       = "warm"
	cold       = "cold, tree and counts built anew"
)

// timeLimit is what the whole run may take.
const timeLimit = 5 * time.Minute

func main() { figure.Main(command(os.Stdout, os.Stderr)) }

// command writes lines to out and what is for people to progress.
func command(out, progress io.Writer) *cobra.Command {
	var o figure.Common
	cmd := &cobra.Command{
		Use:   "bench-plan",
		Short: "Measure planning alone",
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, out, progress) },
	}
	o.AddFlags(cmd.Flags(), "few answers per question, memory not counted")
	return cmd
}

func run(ctx context.Context, o figure.Common, out, progress io.Writer) (err error) {
	began := time.Now()
	if o.Source != "" && !o.Check && o.Record == "" {
		return errors.New("--source: nothing is read from it without --check or --record: leave it out")
	}
	if err := o.Begin(benchName); err != nil {
		return err
	}
	set := figure.NewSet(benchName)
	for _, q := range questions(cluster(5000, 0), cluster(100_000, 0)) {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
			break
		}
		if failed := measure(set, q, o.Quick); failed != nil {
			set.Forget(q.name)
			err = errors.Join(err, fmt.Errorf("%s: no figures: %w", q.name, failed))
		}
	}
	return set.Conclude(
		out,
		progress,
		figure.Result{Common: &o, Rows: rows(set), Verdicts: verdicts(set, o.Quick), Began: began, Limit: timeLimit, Broken: err},
	)
}

// rows are the figures and each answer as a multiple of one look at all nodes.
func rows(set *figure.Set) []figure.Figure {
	all := set.Figures()
	for _, kase := range set.Cases() {
		all = append(all, set.Ratio(kase, warm, systemHoldfast, systemScan, "warm_vs_scan", figure.Times)...)
	}
	return all
}

// goals are bounds of the median of warm, in milliseconds.
var goals = map[string]float64{
	"1000 pods, 5000 nodes": 10, "1000 pods, 100000 nodes": 100, "replace one of 1000, 5000 nodes": 1, "no: 9 of 10 of 5000 nodes ruled out": 20,
}

// verdicts says of every goal what became of it. Three answers say nothing.
func verdicts(set *figure.Set, quick bool) (v figure.Verdicts) {
	for _, kase := range slices.Sorted(maps.Keys(goals)) {
		if got, ok := set.Median(kase, systemHoldfast, warm); ok && !quick {
			v.Say(got <= goals[kase], fmt.Sprintf("%s: %.3g ms, the goal is at most %g", kase, got, goals[kase]))
		} else {
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s: the goal is at most %g ms", kase, goals[kase]))
		}
	}
	return v
}

// measure asks one question again and again, on a tree that stands and on new ones, and in turn with it looks at all nodes.
func measure(set *figure.Set, q question, quick bool) error {
	times := rounds
	if quick {
		times = quickRounds
	}
	tree := standing(q)
	ask := func(tree *topology.Tree) error {
		if _, no := gang.Place(tree, q.g); (no == nil) != q.fits {
			return fmt.Errorf("it is to fit: %t, the answer is %+v", q.fits, no)
		}
		return nil
	}
	if err := ask(tree); err != nil {
		return err
	}
	for range times {
		began := time.Now()
		if err := ask(tree); err != nil {
			return err
		}
		set.Add(q.name, systemHoldfast, warm, "ms", time.Since(began).Seconds()*1e3)
		began = time.Now()
		if n := scan(q.nodes); n > len(q.nodes) {
			return fmt.Errorf("%d of %d nodes have room", n, len(q.nodes))
		}
		set.Add(q.name, systemScan, warm, "ms", time.Since(began).Seconds()*1e3)
	}
	for range max(1, times/10) {
		began := time.Now()
		if err := ask(standing(q)); err != nil {
			return err
		}
		set.Add(q.name, systemHoldfast, cold, "ms", time.Since(began).Seconds()*1e3)
	}
	if quick {
		return nil
	}
	var failed error
	b := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if err := ask(tree); err != nil {
				failed = err
			}
		}
	})
	set.Add(q.name, systemHoldfast, "memory of one answer", "KiB", float64(b.AllocedBytesPerOp())/1024)
	set.Add(q.name, systemHoldfast, "allocations of one answer", "count", float64(b.AllocsPerOp()))
	return failed
}

// scan counts the nodes that have room for one pod.
func scan(nodes []topology.Node) (room int) {
	for i := range nodes {
		fits := true
		for name, need := range shape {
			fits = fits && nodes[i].Free[name] >= need
		}
		if fits {
			room++
		}
	}
	return room
}
