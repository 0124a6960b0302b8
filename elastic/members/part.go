package members

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// A generation may go on without some of its gang's slots. These take no part in it: nothing waits for their pods, no rank of it runs
// there, and what happens to them is no failure of it. A pod that comes into such a slot is a candidate: it may take part in the next
// generation. Ranks and node ranks are dense over the slots that take part, in the order of slots.

// Each yields every slot that takes part, with its state.
func (ms *Members) Each(yield func(Slot, *Member) bool) {
	for i := range ms.slots {
		if ms.Takes(Slot(i)) && !yield(Slot(i), &ms.slots[i]) {
			return
		}
	}
}

// Takes reports whether a slot takes part.
func (ms *Members) Takes(slot Slot) bool { return ms.out == nil || !ms.out[slot] }

// Parts returns the number of slots that take part.
func (ms *Members) Parts() (n int) {
	if ms.out == nil {
		return len(ms.slots)
	}
	for range ms.Each {
		n++
	}
	return n
}

// Slots returns the slots that take part.
func (ms *Members) Slots() []Slot {
	slots := make([]Slot, 0, len(ms.slots))
	for slot := range ms.Each {
		slots = append(slots, slot)
	}
	return slots
}

// First returns the lowest slot that takes part: its pod has rank 0.
func (ms *Members) First() Slot {
	for slot := range ms.Each {
		return slot
	}
	return 0
}

// Out returns the slots that take no part.
func (ms *Members) Out() (slots []Slot) {
	for i, out := range ms.out {
		if out {
			slots = append(slots, Slot(i))
		}
	}
	return slots
}

// LeaveOut sets which slots take no part.
func (ms *Members) LeaveOut(slots []Slot) {
	if slices.Equal(slots, ms.Out()) {
		return
	}
	ms.out, ms.numbered = nil, nil
	if len(slots) == 0 {
		return
	}
	ms.out = make([]bool, len(ms.slots))
	for _, slot := range slots {
		ms.out[slot] = true
	}
}

// SetElastic sets that generations may go on without some slots, in whole blocks of so many.
func (ms *Members) SetElastic(unit int) { ms.elastic, ms.unit = true, max(1, unit) }

// Elastic reports whether generations may go on without some slots.
func (ms *Members) Elastic() bool { return ms.elastic }

// HoldsNone reports whether no rank of the pod holds a step.
func (m *Member) HoldsNone() bool {
	for i := range m.report.Rank {
		if len(m.report.Rank[i].Sealed) > 0 {
			return false
		}
	}
	return true
}

// Newest returns the newest step on a line that all ranks of a slot hold; 0: there is none.
func (ms *Members) Newest(slot Slot, line restore.Line) int64 {
	p := restore.Pod{Held: inventory(&ms.slots[slot].report)}
	return p.Newest(line).Step
}

// NoneHolds reports whether no rank holds a step.
func (ms *Members) NoneHolds() bool { return ms.All((*Member).HoldsNone) }

// LeastGrace returns the least grace period of the pods that take part; 0: unknown.
func (ms *Members) LeastGrace() (least time.Duration) {
	for _, m := range ms.Each {
		if g := m.report.Grace; least == 0 || g > 0 && g < least {
			least = g
		}
	}
	return least
}

// Divided returns, for users, why no group of consecutive pods within a block may hold the whole state; "": in each such group whose ranks
// hold a step they hold all of it, and ranks at the same place in their group hold the same part.
func (ms *Members) Divided() string {
	_, why := ms.together()
	return why
}

// together returns how many consecutive pods hold the whole state, or why none do. Generations consist of whole blocks, so the place of a
// slot's pod in its group is always the same.
func (ms *Members) together() (pods int, why string) {
	span := 1
	for slot, m := range ms.Each {
		for i := range m.report.Rank {
			k := &m.report.Rank[i]
			if len(k.Sealed) > 0 && k.Span == 0 {
				return 0, fmt.Sprintf("the client in pod %s of slot %d does not say whether each rank holds the whole state", m.pod.Name, slot)
			}
			if len(k.Sealed) > 0 {
				span = max(span, k.Span)
			}
		}
	}
	if span == protocol.SpanAll {
		return 0, "the state is divided over all ranks"
	}
	short, ranks, same := Slot(-1), 0, true // short is the first pod that does not hold all of it
	for slot, m := range ms.Each {
		n := m.report.Ranks
		if short < 0 && n%span != 0 {
			short = slot
		}
		if n > 0 {
			same, ranks = same && (ranks == 0 || n == ranks), n
		}
	}
	unit := max(1, ms.unit)
	switch text := fmt.Sprintf("the state is divided over %d ranks, and ", span); {
	case short < 0:
		return 1, ""
	case same && span%ranks == 0 && unit%(span/ranks) == 0:
		return span / ranks, ""
	case unit > 1:
		return 0, text + fmt.Sprintf("%d pods (holdfast.dev/pods-unit) do not hold all of it: pod %s of slot %d has %d", unit, ms.slots[short].pod.Name, short, ms.slots[short].report.Ranks)
	default:
		text += fmt.Sprintf("pod %s of slot %d has %d: one pod does not hold all of it", ms.slots[short].pod.Name, short, ms.slots[short].report.Ranks)
		if n := len(ms.slots); same && span%ranks == 0 && span/ranks < n && n%(span/ranks) == 0 {
			text += fmt.Sprintf("; holdfast.dev/pods-unit: \"%d\" keeps pods together that do", span/ranks)
		}
		return 0, text
	}
}

// Ungiven returns, for users, why no rank can give its state to one that holds none; "": it can. Only ranks of a job with a minimum give
// it: its owner states that all ranks hold the same state, which the client cannot prove, because pipeline stages may look alike.
func (ms *Members) Ungiven() string {
	if !ms.elastic {
		return "the job does not say that its ranks hold the same state (holdfast.dev/min-pods)"
	}
	if why := ms.Divided(); why != "" {
		return why
	}
	holds := false
	for slot, m := range ms.Each {
		for i := range m.report.Rank {
			k := &m.report.Rank[i]
			if len(k.Sealed) > 0 && !k.Grouped {
				return fmt.Sprintf("the script in pod %s of slot %d called restore() before init_process_group(): call it after, "+
					"so that another rank can give its state", m.pod.Name, slot)
			}
			holds = holds || len(k.Sealed) > 0
		}
	}
	if !holds {
		return "no rank holds a step"
	}
	return ""
}

// Gives reports whether a rank that holds a step can give it to one that holds none.
func (ms *Members) Gives() bool { return ms.Ungiven() == "" }

// Keeps reports whether the pods that stay hold the whole state together and can give it to others.
func (ms *Members) Keeps(leaves func(Slot) bool) bool {
	return ms.Gives() && ms.Together(func(slot Slot) bool { return ms.Takes(slot) && !leaves(slot) })
}

// Together reports whether the pods of the slots for which holds is true hold all parts of a state of which each holds its own.
func (ms *Members) Together(holds func(Slot) bool) bool {
	group, _ := ms.together()
	held, left := make([]bool, group), group
	for i := 0; left > 0 && i < len(ms.slots); i++ {
		if k := i % group; !held[k] && holds(Slot(i)) {
			held[k], left = true, left-1
		}
	}
	return group > 0 && left == 0
}

// donor returns the first rank that gives a step, as in protocol.Run: that of the lowest pod whose ranks all hold it; 0: each holds it, or
// none can be given.
func (ms *Members) donor(l *Layout, from protocol.Point) int {
	if from.Step == 0 || !ms.Gives() {
		return 0
	}
	donor, lacks := 0, false
	for slot, m := range ms.Each {
		switch lack := slices.ContainsFunc(inventory(&m.report), func(h []protocol.Point) bool { return !restore.Holds(h, from) }); {
		case lack:
			lacks = true
		case donor == 0 && m.report.Ranks > 0:
			donor = l.Base[slot] + 1
		}
	}
	if !lacks {
		return 0
	}
	return donor
}
