package coordtest

import (
	"slices"
	"sync"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
)

// Drive leads a gang of the pods, in this order: it starts generations, halts them on a failure and
// restarts from the newest step that all ranks hold, until all finish. Restarts counts the failures.
func (c *Coordinator) Drive(pods ...string) *Driver {
	d := &Driver{c: c, pods: pods}
	c.mu.Lock()
	c.hook = func(string) { d.look() }
	c.mu.Unlock()
	d.look()
	return d
}

// Driver is the shortest true coordinator of one gang.
type Driver struct {
	c    *Coordinator
	pods []string

	mu         sync.Mutex
	generation uint64
	restarts   uint32
	halting    bool
	running    bool
	over       bool
	common     uint64
	frontier   uint64
	run        []*v1.Generation
}

// Restarts is how many generations failed.
func (d *Driver) Restarts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int(d.restarts)
}

func (d *Driver) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	var reports []*v1.Report
	for _, pod := range d.pods {
		r := d.c.Report(pod)
		if r == nil || r.Ranks == 0 || d.over {
			return
		}
		reports = append(reports, r)
	}
	switch {
	case d.running:
		d.watch(reports)
	case d.halting:
		for _, r := range reports {
			if r.State != v1.State_STATE_HALTED || r.Generation != d.generation {
				return
			}
		}
		d.start(reports)
	default:
		d.start(reports)
	}
}

// watch looks for a failure, the end, or levels that rose.
func (d *Driver) watch(reports []*v1.Report) {
	finished := 0
	for _, r := range reports {
		if r.Generation != d.generation {
			return
		}
		switch r.State {
		case v1.State_STATE_FAILED, v1.State_STATE_HALTED, v1.State_STATE_IDLE:
			d.running, d.halting = false, true
			d.restarts++
			d.direct(v1.Order_ORDER_HALT)
			return
		case v1.State_STATE_FINISHED:
			finished++
		}
		if r.Leaving && r.State == v1.State_STATE_RUNNING {
			d.running, d.halting = false, true
			d.direct(v1.Order_ORDER_HALT)
			return
		}
	}
	if finished == len(reports) {
		d.over = true
		d.direct(v1.Order_ORDER_EXIT)
		return
	}
	common, frontier := levels(reports)
	if common > d.common || frontier > d.frontier {
		d.common, d.frontier = max(d.common, common), max(d.frontier, frontier)
		d.direct(v1.Order_ORDER_RUN)
	}
}

func (d *Driver) start(reports []*v1.Report) {
	if slices.ContainsFunc(reports, func(r *v1.Report) bool { return r.Leaving }) {
		return
	}
	d.common, _ = levels(reports)
	d.frontier = d.common
	d.generation++
	d.running, d.halting = true, false
	d.run = nil
	world := uint32(0)
	for i, r := range reports {
		d.run = append(d.run, &v1.Generation{
			Number: d.generation, BaseRank: world, NodeRank: uint32(i), Nodes: uint32(len(reports)), MasterAddr: reports[0].Address,
			MasterPort: reports[0].Port, RestoreStep: d.common, RestartCount: d.restarts,
		})
		world += r.Ranks
	}
	for _, g := range d.run {
		g.WorldSize = world
	}
	d.direct(v1.Order_ORDER_RUN)
}

func (d *Driver) direct(order v1.Order) {
	for i, pod := range d.pods {
		out := &v1.Directive{Protocol: 1, Generation: d.generation, Order: order, Common: d.common, Frontier: d.frontier}
		if order == v1.Order_ORDER_RUN {
			out.Run = d.run[i]
		}
		d.c.Direct(pod, out)
	}
}

// levels are the newest step that all ranks hold, and the lowest of their newest ones.
func levels(reports []*v1.Report) (common, frontier uint64) {
	count, ranks := map[uint64]int{}, 0
	for _, r := range reports {
		for _, rank := range r.Rank {
			var newest uint64
			for _, s := range rank.Sealed {
				count[s]++
				newest = max(newest, s)
			}
			if ranks == 0 || newest < frontier {
				frontier = newest
			}
			ranks++
		}
	}
	for step, n := range count {
		if n == ranks {
			common = max(common, step)
		}
	}
	return common, frontier
}

// Common is the newest step that all ranks were seen to hold.
func (d *Driver) Common() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.common
}

// RestoreStep is where the newest generation started.
func (d *Driver) RestoreStep() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.run) == 0 {
		return 0
	}
	return d.run[0].RestoreStep
}
