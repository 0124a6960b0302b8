// Package drain makes terminating pods of a gang copy their state to storage before they end. If the gang trains, all ranks advance to the
// barrier step and stop there, and terminating pods copy that step. If all ranks are halted, terminating pods copy only the step from which
// training would continue. A gang that goes on without the terminating pods advances to the barrier step, and copies nothing. The drain
// ends before the first terminating pod must end, with or without a copy. Copies of a fenced pod do not count.
package drain

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/barrier"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// Drain is the drain of a gang's newest generation.
type Drain struct {
	ms         *members.Members
	rs         *replacements.Replacements
	ledger     *ledger.Ledger
	account    *account.Account
	generation *generation.Generation
	// startedAt is when this coordinator first saw the gang. awaitsAgent: a terminating pod may still attach to this coordinator.
	startedAt   time.Time
	awaitsAgent bool
	run
}

// run is the period in which ranks go on to a common step, stay there, and pods to be replaced copy it. Its time limit is in
// replacements/deadline.go.
//
//	barrier set ──► all stay at a step ≥ it: mark chosen ──► pods to be replaced copied it ──► halt
//	   └──────────── deadline, a failure, or nothing to be had ────────────────────────► halt
type run struct {
	// since is when it began; zero: it has not.
	since   time.Time
	barrier barrier.Barrier
	mark    protocol.Mark
	// over: pods to be replaced have copied what they could, or that was given up; all ranks must halt.
	over bool
	// halted is what pods to be replaced must copy while all ranks are halted.
	halted protocol.Mark
}

// Outcome is what the caller must do: send new directives, store the record, write a note for users, which is a warning if nothing was
// copied.
type Outcome struct {
	Directives, Save bool
	Note             *replacements.Note
}

// New returns the drain of a gang without terminating pods.
func New(ms *members.Members, rs *replacements.Replacements, l *ledger.Ledger, a *account.Account, g *generation.Generation) *Drain {
	return &Drain{ms: ms, rs: rs, ledger: l, account: a, generation: g}
}

// NoteStart records when this coordinator first saw the gang.
func (d *Drain) NoteStart(now time.Time) {
	if d.startedAt.IsZero() {
		d.startedAt = now
	}
}

// Drop ends the drain of a generation: no pod terminates any more, or the copies so far must do. Drop reports whether there was one.
func (d *Drain) Drop() bool {
	begun := d.Begun()
	d.run = run{}
	return begun
}

// Begun reports whether ranks are going on to a common step.
func (d *Drain) Begun() bool { return !d.since.IsZero() }

// Over reports whether pods have copied what they could.
func (d *Drain) Over() bool { return d.over }

// Since returns when the drain began, if ranks had to stay at a step; zero: there is none.
func (d *Drain) Since() time.Time {
	if d.barrier.Step() == 0 {
		return time.Time{}
	}
	return d.since
}

// Barrier returns the step at which all ranks stay, and what terminating pods copy while they train.
func (d *Drain) Barrier() (step int64, mark protocol.Mark) {
	if d.keptElsewhere() {
		return d.barrier.Step(), protocol.Mark{}
	}
	return d.barrier.Step(), d.mark
}

// CopyNext returns the step from which on terminating pods will copy the next one; 0: they copy none, or one is chosen.
func (d *Drain) CopyNext() int64 {
	if d.keptElsewhere() || d.mark != (protocol.Mark{}) {
		return 0
	}
	return d.barrier.Step()
}

// keptElsewhere reports whether the other pods hold the state of the terminating ones and can give it, so that these copy nothing.
func (d *Drain) keptElsewhere() bool {
	leaving := d.rs.Uncommitted()
	return d.ms.Elastic() && d.ms.Keeps(func(slot members.Slot) bool {
		return slices.ContainsFunc(leaving, func(t replacements.Termination) bool { return t.Slot == slot })
	})
}

// Halted returns what terminating pods copy while all ranks are halted.
func (d *Drain) Halted() protocol.Mark { return d.halted }

// Advance begins or continues the drain until it is over.
func (d *Drain) Advance(now time.Time) (o Outcome) {
	if !d.Begun() {
		d.since = now
	}
	if why := d.undrainable(now); why != "" {
		d.mark, d.over = protocol.Mark{}, true
		if d.ledger.Copies() || !d.rs.AllSuspended() { // suspending a Job without storage loses its state by design
			o.Note = &replacements.Note{Warning: true, Message: fmt.Sprintf("no drain of %s: %s", d.rs.Names(), why)}
		}
		return o
	}
	if !d.allDrain() {
		return o
	}
	o.Directives = d.moveBarrier(now)
	o.Directives = d.placeMark(now) || o.Directives
	if d.mark == (protocol.Mark{}) {
		return o
	}
	if d.keptElsewhere() {
		d.over = true
		o.Note = &replacements.Note{Message: fmt.Sprintf("all ranks stay at step %d, which pods beside %s hold", d.mark.Step, d.rs.Names())}
		return o
	}
	d.over = d.record(d.mark, &o, now)
	return o
}

// allDrain reports whether the agents of all pods can receive a barrier step.
func (d *Drain) allDrain() bool {
	return d.ms.All(func(m *members.Member) bool { return m.Drains(d.generation.Number) })
}

// undrainable returns why a drain is impossible or pointless; "": it is neither.
func (d *Drain) undrainable(now time.Time) string {
	for _, t := range d.rs.Uncommitted() {
		m := d.ms.At(t.Slot)
		if t.Dead {
			return fmt.Sprintf("%s is dead", t.Where())
		}
		if m.Known() && m.Is(t.Pod) && !m.Report().Storage && !d.keptElsewhere() {
			return fmt.Sprintf("pod %s has no storage to copy to", t.Name)
		}
	}
	if !d.ms.All(func(m *members.Member) bool { return !m.Known() || m.Report().StateBytes > 0 }) {
		return "state is not kept in memory"
	}
	switch took := now.Sub(d.since); {
	case now.After(d.rs.DrainUntil()):
		return fmt.Sprintf("it timed out after %s", took.Round(time.Millisecond))
	case took > replacements.HaltTime && !d.allDrain():
		return "not all agents are connected"
	}
	return ""
}

// time returns the drain's time limit.
func (d *Drain) time() time.Duration { return d.rs.DrainUntil().Sub(d.since) }

// moveBarrier sets the barrier step, and moves it when ranks can no longer meet there.
func (d *Drain) moveBarrier(now time.Time) bool {
	b := &d.barrier
	b.Note(d.ms.Levels(), d.ms.All(func(m *members.Member) bool { return m.Report().BarrierStep == b.Step() }), now)
	return b.Move(d.account.Pace(), d.ms.LowestNewest(), d.time()/replacements.StuckShare, now)
}

// placeMark chooses the step that pods to be replaced copy: the one at which all ranks stay or, after half of the available time, the
// newest step that all ranks hold. placeMark reports whether the step changed.
func (d *Drain) placeMark(now time.Time) bool {
	before, all, pace, common := d.mark, d.time(), d.account.Pace(), d.generation.CommonStep()
	if d.mark != (protocol.Mark{}) && !d.possible(d.mark) {
		d.mark = protocol.Mark{}
	}
	late := max(now.Sub(d.since), d.barrier.Ahead(pace)) > all/replacements.LateShare
	if d.mark == (protocol.Mark{}) && common > 0 && (late || d.barrier.AtBarrier(pace, all/replacements.StuckShare, now)) {
		d.mark = d.generation.Mark(common)
	}
	return d.mark != before
}

// possible reports whether every pod to be replaced has copied the step or still can.
func (d *Drain) possible(mark protocol.Mark) bool {
	return !slices.ContainsFunc(d.rs.All(), func(t replacements.Termination) bool {
		m := d.ms.At(t.Slot)
		return d.ms.Takes(t.Slot) && m.Is(t.Pod) && !m.CanWrite(mark) && !d.generation.HasPart(t.Slot, mark.Point())
	})
}

// owed returns the pods whose part of a step is not in storage and that are not fenced.
func (d *Drain) owed(mark protocol.Mark) []replacements.Termination {
	return slices.DeleteFunc(slices.Clone(d.rs.All()), func(t replacements.Termination) bool {
		return !d.ms.Takes(t.Slot) || !d.ms.At(t.Slot).Is(t.Pod) || d.rs.Fenced(t.Pod) || d.generation.HasPart(t.Slot, mark.Point())
	})
}

// record records what pods to be replaced have copied of a step; it reports whether that is all.
func (d *Drain) record(mark protocol.Mark, o *Outcome, now time.Time) (all bool) {
	all = true
	for _, t := range d.owed(mark) {
		m := d.ms.At(t.Slot)
		if all = all && m.Wrote(mark); m.Wrote(mark) {
			d.ledger.KeepCopy(mark, d.generation.BaseRank(t.Slot), m.Report().Rank)
		}
	}
	o.Directives = d.ledger.TakeComplete(mark, d.ms.World(), d.account.SealedAt(mark.Step), now) || o.Directives
	if all {
		o.Note = &replacements.Note{Message: fmt.Sprintf("step %d is in storage, copied by %s", mark.Step, d.rs.Names())}
		o.Save = true // before any of these pods is released
	}
	return all
}

// AdvanceHalted makes pods to be replaced that still live copy the step that the next generation needs, while all ranks are halted, and
// records what they copied.
func (d *Drain) AdvanceHalted(now time.Time) (o Outcome) {
	mark, late := protocol.Mark{}, now.After(d.rs.DrainUntil())
	awaited := d.awaitsAgent
	if d.awaitsAgent = !late && d.mayAttach(now); d.awaitsAgent {
		return o
	}
	if !late {
		mark = d.haltedMark()
	}
	o.Directives = awaited || mark != d.halted
	if d.halted = mark; mark == (protocol.Mark{}) {
		return o
	}
	if d.record(mark, &o, now) {
		d.halted, o.Directives = protocol.Mark{}, true
	}
	return o
}

// HaltedOver reports whether pods to be replaced that still live have copied what was ordered, or cannot. It is valid after AdvanceHalted.
func (d *Drain) HaltedOver() bool { return !d.awaitsAgent && d.halted == protocol.Mark{} }

// NothingOwed is HaltedOver for the present state, if AdvanceHalted is no longer called.
func (d *Drain) NothingOwed(now time.Time) bool {
	return !d.mayAttach(now) && d.halted == protocol.Mark{}
}

// mayAttach reports whether this coordinator has just started and the agent of a pod to be replaced has not attached yet: the state in its
// memory may be needed.
func (d *Drain) mayAttach(now time.Time) bool {
	return d.generation.Number > 0 && now.Sub(d.startedAt) < replacements.HaltTime && d.rs.AnyUnknown()
}

// haltedMark returns the step that pods to be replaced must copy before they are deleted; none if they need not or cannot.
func (d *Drain) haltedMark() protocol.Mark {
	p := d.generation.Plan()
	mark := protocol.Mark{Step: p.Step, Generation: d.generation.Number, Branch: p.Branch}
	if p.Step == 0 {
		return protocol.Mark{}
	}
	owed := d.owed(mark)
	lost := func(t replacements.Termination) bool { return !d.ms.At(t.Slot).CanSave(d.generation.Number, mark) }
	if len(owed) == 0 || slices.ContainsFunc(owed, lost) { // a lost step will be gone with the pod
		return protocol.Mark{}
	}
	return mark
}
