package ledger

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// What stays in storage. The record names it; an order to write a manifest carries what the record names as it is stored, and
// the agent that obeys removes what is older than the two newest and not named. A record only ever comes to name steps that are
// newer than all that it names, or goes on naming what it does. So an order may be obeyed however late, by whomever: what is
// recorded now, and older than what that order spares, was recorded when it was given, and is named in it.

// Storage is what a job asks of storage.
type Storage struct {
	// Every is how often a step is copied there; 0: never.
	Every time.Duration
	Retention
}

// Retention is what a job asks to be kept there.
type Retention struct {
	// Gang and Version tell a newer wish from an older one: the UID of the object that says so, and the generation of its spec.
	Gang    string
	Version int64
	// Pins are the steps that people keep until they say otherwise.
	Pins []protocol.Mark
	// PinWish numbers Pins, so that who asked knows the answer from one to an earlier wish; 0: nobody numbered them.
	PinWish int64
	// Keep is how many of the newest steps stay; below two: two. Every has one step per such a time stay besides; 0: none.
	Keep  int
	Every time.Duration
}

const (
	// keptLeast is how many of the newest steps always stay: where a file of one is torn, the other serves.
	keptLeast = 2
	// keptMost and keptEveryMost bound what stays by number and by time, whatever a Gang says.
	keptMost      = 32
	keptEveryMost = 48
)

// Kept are those of recorded steps that stay, in the same order: newest first. By number these are the newest, by time the first of all
// and then each that is so much later than the one before it. So one that stays by time goes on staying, until there are too
// many of them: then the oldest goes. Times are those of the record; a clock that was set back keeps no step off.
func Kept(recorded []StoredStep, r Retention) []StoredStep {
	stays := make([]bool, len(recorded))
	for i := range min(len(recorded), keptMost, max(keptLeast, r.Keep)) {
		stays[i] = true
	}
	if r.Every > 0 {
		var byTime []int
		for i, d := range slices.Backward(recorded) {
			if n := len(byTime); n == 0 || d.At.Sub(recorded[byTime[n-1]].At).Abs() >= r.Every {
				byTime = append(byTime, i)
			}
		}
		for _, i := range byTime[max(0, len(byTime)-keptEveryMost):] {
			stays[i] = true
		}
	}
	var out []StoredStep
	for i, d := range recorded {
		if stays[i] {
			out = append(out, d)
		}
	}
	return out
}

// Pinned are the wishes that can be promised: steps that were pinned before, and those that the record names now. Of any other
// nobody knows whether its removal was ordered.
func Pinned(wishes []protocol.Mark, before, recorded []StoredStep) []StoredStep {
	var out []StoredStep
	for _, m := range wishes {
		for _, all := range [][]StoredStep{before, recorded} {
			if i := slices.IndexFunc(all, func(d StoredStep) bool { return sameFiles(d.Mark, m) }); i >= 0 {
				out = append(out, all[i])
				break
			}
		}
	}
	return out
}

// sameFiles says whether two marks name the same files: people name a step by number and generation alone.
func sameFiles(a, b protocol.Mark) bool { return a.Step == b.Step && a.Generation == b.Generation }

// TakeRetention takes over what the job asks for, unless something newer is known; it reports whether the record has to be stored.
func (l *Ledger) TakeRetention(r Retention) bool {
	if r.Gang == l.retention.Gang && r.Version < l.retention.Version {
		return false
	}
	l.retention = r
	changed := l.pin()
	if changed {
		l.pinnedSince = l.revision + 1
	}
	changed = changed || r.PinWish != l.pinWish
	l.pinWish = r.PinWish
	return changed
}

// pin brings the pins in line with what the job asks for; it says whether that changes them.
func (l *Ledger) pin() bool {
	pinned := Pinned(l.retention.Pins, l.pinned, slices.Concat(l.steps, l.launches))
	same := slices.EqualFunc(pinned, l.pinned, func(a, b StoredStep) bool { return a.Mark == b.Mark })
	if !same {
		l.pinned = pinned
	}
	return !same
}

// spared are the marks that no removal may touch: what the record names, and what people wish to be pinned although it does not
// know them, as where the Gang was made again.
func (l *Ledger) spared() []protocol.Mark {
	out := []protocol.Mark{}
	for _, d := range l.steps {
		out = append(out, d.Mark)
	}
	for _, c := range l.copies {
		if !slices.Contains(out, c.Mark) {
			out = append(out, c.Mark)
		}
	}
	more := slices.Clone(l.retention.Pins) // pinned steps are among them
	for _, d := range l.launches {
		more = append(more, d.Mark)
	}
	for _, m := range more {
		if !slices.ContainsFunc(out, func(o protocol.Mark) bool { return sameFiles(o, m) }) {
			out = append(out, m)
		}
	}
	return out
}

// removedBelow is the mark below which nothing is needed that is not spared; none where the record names no step.
func (l *Ledger) removedBelow() protocol.Mark {
	var marks []protocol.Mark
	for _, d := range l.steps[:min(len(l.steps), keptLeast)] {
		marks = append(marks, d.Mark)
	}
	for _, c := range l.copies {
		marks = append(marks, c.Mark)
	}
	if len(marks) == 0 {
		return protocol.Mark{}
	}
	return slices.MinFunc(marks, func(a, b protocol.Mark) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Step, b.Step))
	})
}
