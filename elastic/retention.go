package elastic

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

// setDurable records the steps of all ranks that stay, newest first.
func (s *State) setDurable(all []StoredStep) {
	r := &s.Record
	r.Durable, r.Older, r.Kept = nil, nil, nil
	if len(all) > 0 {
		r.Durable = &all[0]
	}
	if len(all) > 1 {
		r.Older = &all[1]
	}
	if len(all) > 2 {
		r.Kept = slices.Clone(all[2:])
	}
}

// retain takes over what the job asks for, unless something newer is known. Of a gang that has ended nothing is removed any more.
func (s *State) retain(r Retention) {
	if s.over || s.Final() || r.Gang == s.retention.Gang && r.Version < s.retention.Version {
		return
	}
	s.retention = r
	changed := s.pin()
	if changed {
		s.pinnedRevision = s.revision + 1
	}
	if changed || r.PinWish != s.Record.PinWish {
		s.Record.PinWish = r.PinWish
		s.save()
	}
}

// pin brings the record's pins in line with what the job asks for; it says whether that changes the record.
func (s *State) pin() bool {
	pinned := Pinned(s.retention.Pins, s.Record.Pinned, slices.Concat(s.durable(), s.Record.Launch.Kept))
	if slices.EqualFunc(pinned, s.Record.Pinned, func(a, b StoredStep) bool { return a.Mark == b.Mark }) {
		return false
	}
	s.Record.Pinned = pinned
	return true
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

// kept are the marks that no removal may touch: what the record names, and what people wish to be pinned although it does not
// know them, as where the Gang was made anew.
func (s *State) kept() []protocol.Mark {
	out := s.recorded()
	for _, m := range slices.Concat(s.retention.Pins, s.launchKept()) { // Record.Pinned are among them
		if !slices.ContainsFunc(out, func(o protocol.Mark) bool { return sameFiles(o, m) }) {
			out = append(out, m)
		}
	}
	return out
}

// removedBelow is the mark below which nothing is needed that is not kept; none where the record names no step.
func (s *State) removedBelow() protocol.Mark {
	var marks []protocol.Mark
	for _, d := range []*StoredStep{s.Record.Durable, s.Record.Older} {
		if d != nil {
			marks = append(marks, d.Mark)
		}
	}
	for _, c := range s.Record.Copies {
		marks = append(marks, c.Mark)
	}
	if len(marks) == 0 {
		return protocol.Mark{}
	}
	return slices.MinFunc(marks, func(a, b protocol.Mark) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Step, b.Step))
	})
}
