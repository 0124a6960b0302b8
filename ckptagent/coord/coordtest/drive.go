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
	released   bool // a launcher has come where the whole command was a rank
	over       bool
	common     uint64
	frontier   uint64
	run        []*v1.Generation

	// storage: steps are copied without a pause. copy is on its way, manifest what is then written, durable the
	// newest that is; fetch is what comes back before a generation begins.
	storage  bool
	copy     *v1.Mark
	manifest *v1.Manifest
	durable  *v1.Mark
	fetch    *v1.Mark
	stored   int

	// limit is how many failures the gang may have, where limited; exitCode what it then ends with.
	limited  bool
	limit    uint32
	exitCode int32
}

// Limit has the gang given up at the failure after so many, with the exit code of a rank that failed.
func (d *Driver) Limit(failures int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limited, d.limit = true, uint32(failures)
}

// giveUp ends the gang as one that failed once too often.
func (d *Driver) giveUp(failed *v1.Report) {
	d.exitCode = 1
	for _, r := range failed.Rank {
		if r.GetExit().GetCode() != 0 {
			d.exitCode = r.Exit.Code
			break
		}
	}
	d.over = true
	d.direct(v1.Order_ORDER_EXIT)
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
		if r == nil || d.over || r.Ranks == 0 && !d.released {
			return
		}
		reports = append(reports, r)
	}
	switch {
	case d.running:
		d.watch(reports)
	case d.halting:
		for _, r := range reports {
			if r.State != v1.State_STATE_HALTED || r.Generation != d.generation || r.Ranks == 0 {
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
	d.preserve(reports)
	for _, r := range reports {
		if r.Generation != d.generation {
			return
		}
		if r.State == v1.State_STATE_HALTED && r.LeftForLauncher == d.generation {
			d.running, d.halting, d.released = false, true, true
			d.direct(v1.Order_ORDER_HALT)
			return
		}
		switch r.State {
		case v1.State_STATE_FAILED, v1.State_STATE_HALTED, v1.State_STATE_IDLE:
			if d.limited && d.restarts >= d.limit {
				d.giveUp(r)
				return
			}
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
	if d.durable.GetStep() > d.common { // also the world that memory knows nothing of
		if d.fetch == nil {
			d.fetch, d.halting = d.durable, true
			d.direct(v1.Order_ORDER_HALT)
		}
		return
	}
	d.copy, d.manifest, d.fetch = nil, nil, nil
	d.frontier = d.common
	d.generation++
	d.running, d.halting, d.released = true, false, false
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
		out := &v1.Directive{Protocol: 2, Generation: d.generation, Order: order, Common: d.common, Frontier: d.frontier, Copy: d.copy, Fetch: d.fetch, ExitCode: d.exitCode, Launched: d.released}
		if order == v1.Order_ORDER_RUN {
			out.Run = d.run[i]
		}
		if d.fetch != nil {
			out.Run = &v1.Generation{BaseRank: d.run[i].BaseRank, WorldSize: d.run[i].WorldSize}
		}
		if i == 0 {
			out.Manifest = d.manifest
		}
		d.c.Direct(pod, out)
	}
}

// Preserve has steps copied to storage from now on, one after the other.
func (d *Driver) Preserve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.storage = true
}

// Durable is the newest step of which a manifest was written, and how many were.
func (d *Driver) Durable() (mark *v1.Mark, manifests int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.durable, d.stored
}

// Lost says that pods were replaced by new ones: the generation is over.
func (d *Driver) Lost() {
	d.mu.Lock()
	d.running, d.halting = false, true
	d.restarts++
	d.copy, d.manifest = nil, nil
	d.direct(v1.Order_ORDER_HALT)
	d.mu.Unlock()
}

// preserve copies the common step of all ranks, has the manifest written, and goes on to the next.
func (d *Driver) preserve(reports []*v1.Report) {
	if m := d.manifest.GetMark(); m != nil && reports[0].GetManifested().GetStep() == m.Step && reports[0].GetManifested().GetGeneration() == m.Generation {
		d.durable, d.copy, d.manifest = m, nil, nil
		d.stored++
	}
	if !d.storage || d.manifest != nil {
		return
	}
	manifest, held := &v1.Manifest{Mark: d.copy}, true
	for _, r := range reports {
		for _, rank := range r.Rank {
			c := rank.GetCopied()
			copied := d.copy != nil && c.GetMark().GetStep() == d.copy.Step && c.GetMark().GetGeneration() == d.copy.Generation
			held = held && d.copy != nil && (copied || slices.Contains(rank.Sealed, d.copy.Step))
			if copied {
				manifest.Rank = append(manifest.Rank, &v1.ManifestRank{Length: c.Length, Checksum: c.Checksum})
			}
		}
	}
	switch common, _ := levels(reports); {
	case d.copy != nil && len(manifest.Rank) == int(d.run[0].WorldSize):
		d.manifest = manifest
		if d.durable != nil {
			d.manifest.Recorded = []*v1.Mark{d.durable}
		}
	case held || common == 0 || common <= d.durable.GetStep():
		return
	default:
		d.copy = &v1.Mark{Step: common, Generation: d.generation}
	}
	d.direct(v1.Order_ORDER_RUN)
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
