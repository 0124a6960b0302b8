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

// Storage is a job's storage settings.
type Storage struct {
	// Every is how often a step is copied there; 0: never.
	Every time.Duration
	Retention
}

// Retention is which steps a job keeps in storage.
type Retention struct {
	// Gang and Version order the settings: the UID of the object that holds them, and the generation of its spec.
	Gang    string
	Version int64
	// Pins are the steps that users keep until they release them.
	Pins []protocol.Mark
	// PinWish numbers Pins, so that a client can match the answer to its request; 0: no number.
	PinWish int64
	// Keep is how many of the newest steps stay, at least two. Every keeps one more step per interval; 0: none.
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

// Kept returns which recorded steps stay, newest first: the newest by number, and by time the first and each that is one interval
// later than the one before it. A step that stays by time keeps staying until there are too many; then the oldest is dropped. Times
// are those in the record; a clock that was set back drops no step.
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

// Pinned returns the pins that can be promised: steps pinned before, and steps that the record names now. Whether the removal of any
// other step was ordered is unknown.
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

// sameFiles reports whether two marks name the same files: people name a step by number and generation alone.
func sameFiles(a, b protocol.Mark) bool { return a.Step == b.Step && a.Generation == b.Generation }

// TakeRetention takes over the job's settings, unless newer ones are known; it reports whether the record must be stored.
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

// pin brings the pins in line with what the job asks for; it reports whether that changes them.
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
