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

// SetElastic sets that generations may go on without some slots.
func (ms *Members) SetElastic() { ms.elastic = true }

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

// Divided returns, for users, why the ranks of one pod may not hold the whole state; "": in each pod whose ranks hold a step they hold all
// of it, and local ranks of the same number hold the same part.
func (ms *Members) Divided() string {
	span := 1
	for slot, m := range ms.Each {
		for i := range m.report.Rank {
			k := &m.report.Rank[i]
			if len(k.Sealed) > 0 && k.Span == 0 {
				return fmt.Sprintf("the client in pod %s of slot %d does not say whether each rank holds the whole state", m.pod.Name, slot)
			}
			if len(k.Sealed) > 0 {
				span = max(span, k.Span)
			}
		}
	}
	if span == protocol.SpanAll {
		return "the state is divided over all ranks"
	}
	for slot, m := range ms.Each {
		if n := m.report.Ranks; n%span != 0 {
			return fmt.Sprintf("the state is divided over %d ranks, and pod %s of slot %d has %d: one pod does not hold all of it", span, m.pod.Name, slot, n)
		}
	}
	return ""
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

// donor returns the rank that gives a step, as in protocol.Run: the first of the lowest pod whose ranks all hold it.
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
