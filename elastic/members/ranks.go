package members

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// Layout is the members of one generation.
type Layout struct {
	// Slots are those that take part, ascending: a slot's node rank is its index here.
	Slots []Slot
	// Pods, Incarnations and Base are by slot, and empty where a slot takes no part.
	Pods         []string
	Incarnations []uint64
	Base         []int
	World        int
	// Donor is as in protocol.Run.
	Donor int
	Addr  string
	Port  int
}

// LayOut returns the layout of the next generation, which restores a step, from the present pods of the slots that take part.
func (ms *Members) LayOut(from protocol.Point) *Layout {
	n, first := len(ms.slots), &ms.slots[ms.First()].report
	l := &Layout{Addr: first.Address, Port: first.Port, Pods: make([]string, n), Incarnations: make([]uint64, n), Base: make([]int, n)}
	for slot, m := range ms.Each {
		l.Slots = append(l.Slots, slot)
		l.Pods[slot], l.Incarnations[slot], l.Base[slot] = m.pod.UID, m.report.Incarnation, l.World
		l.World += m.report.Ranks
	}
	l.Donor = ms.donor(l, from)
	return l
}

// Node returns the node rank of a slot; false: it takes no part.
func (l *Layout) Node(slot Slot) (int, bool) { return slices.BinarySearch(l.Slots, slot) }

// NoteWorld records the number of ranks of the newest generation.
func (ms *Members) NoteWorld(ranks int) { ms.seen.Ranks, ms.numbered = ranks, nil }

// Recorded returns the recorded number of ranks of the newest generation; 0: unknown.
func (ms *Members) Recorded() int { return ms.seen.Ranks }

// numbering is the numbering of ranks derived from reports, if there is no layout. usual is the number of ranks of a pod that is not known.
type numbering struct {
	base         []int
	world, usual int
}

// number computes the numbering once per report: it is read for each slot.
func (ms *Members) number() *numbering {
	if ms.numbered == nil {
		r := &numbering{base: make([]int, len(ms.slots)), usual: ms.usualRanks()}
		for slot, m := range ms.Each {
			r.base[slot] = r.world
			r.world += cmp.Or(m.report.Ranks, r.usual)
		}
		ms.numbered = r
	}
	return ms.numbered
}

// Base returns the rank of a slot's first local rank; if not all slots are known, each pod counts with the same number of ranks.
func (ms *Members) Base(slot Slot) int { return ms.number().base[slot] }

// World returns the number of ranks in all slots that take part.
func (ms *Members) World() int { return ms.number().world }

// Ranks returns the number of ranks of a slot; where its pod is unknown, that of the first known pod.
func (ms *Members) Ranks(slot Slot) int {
	return cmp.Or(ms.slots[slot].report.Ranks, ms.number().usual)
}

// usualRanks returns the number of ranks of the first pod that is known, else the recorded one of each pod.
func (ms *Members) usualRanks() int {
	for i := range ms.slots {
		if n := ms.slots[i].report.Ranks; n > 0 {
			return n
		}
	}
	return ms.seen.Ranks / ms.Parts()
}

// Pods returns all slots in the form of package restore, those that take no part without ranks. The memory of a lost slot's pod does not
// count. Ranks give each other steps on the line.
func (ms *Members) Pods(line restore.Line, lost func(Slot) bool) []restore.Pod {
	pods := make([]restore.Pod, len(ms.slots))
	for slot, m := range ms.Each {
		pods[slot] = restore.Pod{Ranks: ms.Ranks(slot), Held: inventory(&m.report), Gone: lost(slot), Failed: m.failed}
	}
	if ms.Gives() {
		group, _ := ms.together()
		restore.Give(pods, line, group)
	}
	return pods
}

// PodsKeeping returns all slots as if the memory of ranks that run, or that are ordered to start, retained only one step.
func (ms *Members) PodsKeeping(line restore.Line, step int64, ordered func(Slot, *Member) bool) []restore.Pod {
	pods := ms.Pods(line, NoneLost)
	for slot, m := range ms.Each {
		if !Ran(m.report.State) && !ordered(slot, m) {
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

// Inventories returns the steps that each rank holds, over all pods, without ranks to which others can give theirs.
func (ms *Members) Inventories(line restore.Line) [][]protocol.Point {
	var out [][]protocol.Point
	for _, p := range ms.Pods(line, NoneLost) {
		if !p.Given {
			out = append(out, p.Held...)
		}
	}
	return out
}

// CommonStep returns the newest step that every rank holds sealed; 0: none.
func (ms *Members) CommonStep() int64 {
	first := &ms.slots[ms.First()].report
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
	return ms.All(func(m *Member) bool { return m.holdsAll(step) })
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
	for _, m := range ms.Each {
		r := &m.report
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
	for _, m := range ms.Each {
		for _, k := range m.report.Rank {
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
	for _, m := range ms.Each {
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
	for _, m := range ms.Each {
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
	for slot, m := range ms.Each {
		if m.RanIn(generation) && m.report.Waited > 0 && m.report.WaitedFor > w.For {
			w = Waited{Slot: slot, Ranks: m.report.Waited, For: m.report.WaitedFor}
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
	for _, m := range ms.Each {
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
