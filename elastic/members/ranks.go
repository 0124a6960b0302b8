package members

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// Layout is the members of one generation.
type Layout struct {
	Pods         []string // by slot
	Incarnations []uint64
	Base         []int
	World        int
	Addr         string
	Port         int
}

// LayOut returns the layout of the next generation from the present pods.
func (ms *Members) LayOut() *Layout {
	l := &Layout{Addr: ms.slots[0].report.Address, Port: ms.slots[0].report.Port}
	for i := range ms.slots {
		m := &ms.slots[i]
		l.Pods = append(l.Pods, m.pod.UID)
		l.Incarnations = append(l.Incarnations, m.report.Incarnation)
		l.Base = append(l.Base, l.World)
		l.World += m.report.Ranks
	}
	return l
}

// NoteWorld records the number of ranks of the newest generation.
func (ms *Members) NoteWorld(ranks int) { ms.seen.Ranks, ms.numbered = ranks, nil }

// Recorded returns the recorded number of ranks of the newest generation; 0: unknown.
func (ms *Members) Recorded() int { return ms.seen.Ranks }

// numbering is the numbering of ranks derived from reports, if there is no layout.
type numbering struct {
	base  []int
	world int
}

// number computes the numbering once per report: it is read for each slot.
func (ms *Members) number() *numbering {
	if ms.numbered == nil {
		r := &numbering{base: make([]int, len(ms.slots))}
		for i := range ms.slots {
			r.base[i] = r.world
			r.world += ms.Ranks(Slot(i))
		}
		ms.numbered = r
	}
	return ms.numbered
}

// Base returns the rank of a slot's first local rank; if not all slots are known, each pod counts with the same number of ranks.
func (ms *Members) Base(slot Slot) int { return ms.number().base[slot] }

// World returns the number of ranks in all slots.
func (ms *Members) World() int { return ms.number().world }

// Ranks returns the number of ranks of a slot; where its pod is unknown, that of the first known pod.
func (ms *Members) Ranks(slot Slot) int {
	if n := ms.slots[slot].report.Ranks; n > 0 {
		return n
	}
	for i := range ms.slots {
		if n := ms.slots[i].report.Ranks; n > 0 {
			return n
		}
	}
	return ms.seen.Ranks / len(ms.slots)
}

// Pods returns all slots in the form of package restore. The memory of a lost slot's pod does not count.
func (ms *Members) Pods(lost func(Slot) bool) []restore.Pod {
	pods := make([]restore.Pod, len(ms.slots))
	for i := range ms.slots {
		m := &ms.slots[i]
		pods[i] = restore.Pod{Ranks: ms.Ranks(Slot(i)), Held: inventory(&m.report), Gone: lost(Slot(i)), Failed: m.failed}
	}
	return pods
}

// PodsKeeping returns all slots as if the memory of running ranks retained only one step.
func (ms *Members) PodsKeeping(step int64) []restore.Pod {
	pods := ms.Pods(NoneLost)
	for slot, m := range ms.Each {
		if !Ran(m.report.State) {
			continue
		}
		for local, held := range pods[slot].Held {
			pods[slot].Held[local] = slices.DeleteFunc(slices.Clone(held), func(p protocol.Point) bool { return p.Step != step })
		}
	}
	return pods
}

// NoneLost returns false: the memory of every pod counts.
func NoneLost(Slot) bool { return false }

// inventory returns the steps that each rank of a pod holds; a rank that the agent does not report holds none.
func inventory(r *protocol.Report) [][]protocol.Point {
	out := make([][]protocol.Point, r.Ranks)
	for _, k := range r.Rank {
		if k.Local >= 0 && k.Local < len(out) {
			out[k.Local] = k.Sealed
		}
	}
	return out
}

// Inventories returns the steps that each rank holds, over all pods.
func (ms *Members) Inventories() [][]protocol.Point {
	var out [][]protocol.Point
	for i := range ms.slots {
		out = append(out, inventory(&ms.slots[i].report)...)
	}
	return out
}

// CommonStep returns the newest step that every rank holds sealed; 0: none.
func (ms *Members) CommonStep() int64 {
	first := &ms.slots[0].report
	if len(first.Rank) == 0 || first.Ranks == 0 {
		return 0
	}
	for _, p := range slices.Backward(first.Rank[0].Sealed) {
		if ms.holdAll(p.Step) {
			return p.Step
		}
	}
	return 0
}

func (ms *Members) holdAll(step int64) bool {
	for i := range ms.slots {
		if !ms.slots[i].holdsAll(step) {
			return false
		}
	}
	return true
}

// ReclaimBelow returns the lowest step that may still become common, beside the present common step: the lowest of all ranks' newest steps,
// or one more if a rank has skipped that one. Otherwise arenas of two slots would stay full once ranks hold different steps beside the
// common one.
func (ms *Members) ReclaimBelow(commonStep int64) int64 {
	low := ms.LowestNewest()
	if low > commonStep && !ms.holdAll(low) {
		return low + 1
	}
	return low
}

// LowestNewest returns the lowest, over all ranks, of each rank's newest step.
func (ms *Members) LowestNewest() int64 { return ms.lowest((*protocol.Rank).Newest) }

// lowest returns the lowest, over all ranks, of a step of each; 0: a rank is unknown.
func (ms *Members) lowest(step func(*protocol.Rank) int64) int64 {
	low := int64(-1)
	for i := range ms.slots {
		r := &ms.slots[i].report
		if len(r.Rank) < r.Ranks {
			return 0
		}
		for j := range r.Rank {
			if n := step(&r.Rank[j]); low < 0 || n < low {
				low = n
			}
		}
	}
	return max(0, low)
}

// Levels returns the ranks' progress.
func (ms *Members) Levels() barrier.Levels {
	l := barrier.Levels{
		CommonStep:     ms.CommonStep(),
		LowestReported: ms.lowest(func(k *protocol.Rank) int64 { return max(k.Step, k.Newest()) }),
	}
	for i := range ms.slots {
		for _, k := range ms.slots[i].report.Rank {
			l.Newest = max(l.Newest, k.Newest())
			l.Reported = max(l.Reported, k.Step, l.Newest)
		}
	}
	return l
}

// Steps is the reported progress of a generation's ranks.
type Steps struct {
	// Lowest is the lowest of the steps that scripts last reported; Keeps: some pod keeps state in memory; Running: no rank was halted.
	Lowest         int64
	Keeps, Running bool
	// Counted is from the site hook of each rank.
	Counted Counted
	// Started is when the first of the pods started its ranks, as their agents report; zero: unknown.
	Started time.Time
}

// Counted is the reported optimizer steps of a generation's ranks.
type Counted struct {
	// Lowest and Most are the lowest and highest count of finished steps of a rank.
	Lowest, Most int64
	// ResumedAt is the count in the state that each rank started from, if Known: all reported the same.
	ResumedAt int64
	Known     bool
}

// Steps returns the progress of a generation; false: not all ranks have reported it.
func (ms *Members) Steps(generation int64) (Steps, bool) {
	s := Steps{Lowest: -1, Running: true, Counted: Counted{Lowest: -1, Known: true}}
	c, first := &s.Counted, true
	for i := range ms.slots {
		m := &ms.slots[i]
		if !m.Current(generation) || len(m.report.Rank) == 0 {
			return Steps{}, false
		}
		s.Running = s.Running && Ran(m.report.State)
		s.Keeps = s.Keeps || m.report.StateBytes > 0
		if t := m.report.Timeline.Started; !t.IsZero() && (s.Started.IsZero() || t.Before(s.Started)) {
			s.Started = t
		}
		for j := range m.report.Rank {
			k := &m.report.Rank[j]
			if s.Lowest < 0 || k.Step < s.Lowest {
				s.Lowest = k.Step
			}
			if c.Most = max(c.Most, k.OptimizerSteps); c.Lowest < 0 || k.OptimizerSteps < c.Lowest {
				c.Lowest = k.OptimizerSteps
			}
			c.Known = c.Known && k.ResumeKnown && (first || k.ResumedAt == c.ResumedAt)
			c.ResumedAt, first = k.ResumedAt, false
		}
	}
	return s, true
}

// FirstDetection returns when the first agent detected a failure of a generation, by its clock.
func (ms *Members) FirstDetection(generation int64) time.Time {
	first := time.Time{}
	for i := range ms.slots {
		m := &ms.slots[i]
		if at := m.report.Timeline.Detected; m.known && m.report.Generation == generation && !at.IsZero() &&
			(first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// Waited is how many ranks of a slot ran on after SIGTERM until they ended, and how long; no ranks: none did.
type Waited struct {
	Slot  Slot
	Ranks int
	For   time.Duration
}

// Waited returns the pod whose ranks of a generation took longest to end after SIGTERM.
func (ms *Members) Waited(generation int64) Waited {
	var w Waited
	for i := range ms.slots {
		if m := &ms.slots[i]; m.RanIn(generation) && m.report.Waited > 0 && m.report.WaitedFor > w.For {
			w = Waited{Slot: Slot(i), Ranks: m.report.Waited, For: m.report.WaitedFor}
		}
	}
	return w
}

// NewestBranch returns the newest branch of training of which a rank of the slot holds a step.
func (m *Member) NewestBranch() int64 {
	newest := int64(0)
	for i := range m.report.Rank {
		for _, p := range m.report.Rank[i].Sealed {
			if p.Branch <= protocol.MaxBranch {
				newest = max(newest, p.Branch)
			}
		}
	}
	return newest
}

// BranchOf returns the branch of a step that ranks of a generation hold; false: no rank holds it.
func (ms *Members) BranchOf(step, generation int64) (int64, bool) {
	for i := range ms.slots {
		m := &ms.slots[i]
		if step == 0 || !m.Current(generation) {
			continue
		}
		for j := range m.report.Rank {
			for _, p := range m.report.Rank[j].Sealed {
				if p.Step == step {
					return p.Branch, true
				}
			}
		}
	}
	return 0, false
}
