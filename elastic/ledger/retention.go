package ledger

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// What stays in storage. An order to write a manifest carries the marks in the stored record; the agent then removes steps that are not
// among them and are older than the two newest. A new mark in a record is always newer than all marks in it. So an agent may carry out an
// order at any later time: a step that is recorded then, and older than those that the order spares, was already recorded when the order
// was sent, and is in it.

// Storage is a job's storage settings.
type Storage struct {
	// Every is the interval at which a step is copied; 0: never.
	Every time.Duration
	Retention
}

// Retention is which steps a job keeps in storage.
type Retention struct {
	// Gang and Version order the settings: the UID of their object, and the generation of its spec.
	Gang    string
	Version int64
	// Pins are the steps that users keep until they release them.
	Pins []protocol.Mark
	// PinWish numbers Pins, so that a client can match the answer with its request; 0: no number.
	PinWish int64
	// Keep is how many of the newest steps stay, at least two. Every keeps one more step per interval; 0: none.
	Keep  int
	Every time.Duration
}

const (
	// keptLeast is how many of the newest steps always stay: if a file of one is damaged, the other is used.
	keptLeast = 2
	// keptMost and keptEveryMost bound the steps that stay by number and by time, whatever a Gang requests.
	keptMost      = 32
	keptEveryMost = 48
)

// Kept returns which recorded steps stay, newest first: the newest by number, and by time the first and each that is one interval later
// than the previous one. A step that stays by time stays until there are too many; then the oldest is dropped. Times are those in the
// record; a clock that was set back drops no step.
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

// Pinned returns the pins that can be granted: steps pinned before, and steps in the present record. The removal of any other step may
// already have been ordered.
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

// sameFiles reports whether two marks name the same files: users name a step by number and generation alone.
func sameFiles(a, b protocol.Mark) bool { return a.Step == b.Step && a.Generation == b.Generation }

// TakeRetention sets the job's settings, unless it has newer ones; it reports whether the record must be stored.
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

// pin updates the pins from the settings; it reports whether they changed.
func (l *Ledger) pin() bool {
	pinned := Pinned(l.retention.Pins, l.pinned, slices.Concat(l.steps, l.launches))
	same := slices.EqualFunc(pinned, l.pinned, func(a, b StoredStep) bool { return a.Mark == b.Mark })
	if !same {
		l.pinned = pinned
	}
	return !same
}

// spared returns the marks that must not be removed: those in the record, and pins that users request although they are not in it, for
// example after the Gang was re-created.
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

// removedBelow returns the mark below which all steps that are not spared may be removed; none if the record is empty.
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
