// Package barrier brings the ranks of a gang to one step and says when all of them stay there. It promises: the step
// lies ahead of every rank when it is chosen; where it brings them together no more it is moved on, never back; and they are
// taken to stay only once nothing has moved for long enough for word of the step to have come to all.
package barrier

import "time"

const (
	// LeadTime is how far ahead of the newest step that was told a hold is set, so that it comes to every
	// rank before the rank is there; leadMost bounds it in steps, leadUnknown is for a pace not known yet.
	LeadTime    = 300 * time.Millisecond
	leadMost    = 1000
	leadUnknown = 2
	// RestHeard is how long nothing may have moved before ranks are believed to stay where they are, restUnheard the same where not
	// all agents say that they have passed the hold on, as those that were built before they could say it.
	RestHeard, restUnheard = 100 * time.Millisecond, time.Second
)

// Levels are how far the ranks of a gang are: the newest step that any told, the lowest of what each told, the newest that any holds, the
// newest that all hold.
type Levels struct{ Told, LowestTold, Newest, Common int64 }

// Pace is how long a step takes, and the time from one that is told to the next, which may be many steps later; 0: not known.
type Pace struct{ Step, Beat time.Duration }

// lead is how many steps ahead a hold is set.
func (p Pace) lead() int64 {
	if p.Step <= 0 {
		return leadUnknown
	}
	return min(1+int64((LeadTime+p.Step-1)/p.Step), leadMost)
}

// Barrier is the step from which on ranks stay; none is chosen in the zero Barrier.
type Barrier struct {
	hold   int64
	raised bool
	// heard is the newest step that was told when all agents had passed this hold on; unheard before.
	heard int64
	// seen is how far ranks were seen to be, still since when none of it has changed.
	seen  Levels
	still time.Time
}

const unheard = -1

// Hold is the step from which on ranks stay; 0: none is chosen yet.
func (b *Barrier) Hold() int64 { return b.hold }

// Note takes down how far ranks are, and whether all agents have passed the hold on.
func (b *Barrier) Note(seen Levels, passed bool, now time.Time) {
	if seen != b.seen {
		b.seen, b.still = seen, now
	}
	switch {
	case !passed: // or not any more: an agent that is alone for long lets its ranks go
		b.heard = unheard
	case b.heard == unheard:
		b.heard, b.still = seen.Told, now
	}
}

// Move chooses the hold, and moves it on where it brings ranks together no more: once where each has saved a step beyond it,
// of which lowestNewest is the lowest, but not the same one, and whenever they are stuck for longer than patience. It says whether it did.
func (b *Barrier) Move(pace Pace, lowestNewest int64, patience time.Duration, now time.Time) bool {
	apart := b.hold != 0 && b.seen.Common < b.hold && lowestNewest >= b.hold && !b.raised
	if b.hold != 0 && !apart && !b.stuck(pace, patience, now) {
		return false
	}
	b.hold, b.heard, b.raised, b.still = b.seen.Told+pace.lead(), unheard, b.raised || apart, now
	return true
}

// stuck says whether some ranks are held while others, which finished that step and did not save it, wait for them in the next one,
// as where an agent hangs and hands out no slot. Nothing moves then. A copy that is yet to be sealed looks the same, so that takes
// a while to be sure of; and while steps go by, the next save may well be beyond the hold.
func (b *Barrier) stuck(pace Pace, patience time.Duration, now time.Time) bool {
	held := b.seen.Newest >= b.hold && b.seen.LowestTold >= b.hold
	return held && b.seen.Common < b.seen.Told && now.Sub(b.still) > max(patience, 2*pace.Step)
}

// Ahead is how long ranks take to come to the hold; 0 where that is not known.
func (b *Barrier) Ahead(pace Pace) time.Duration {
	return pace.Step * time.Duration(b.hold-b.seen.Told)
}

// Held says whether all ranks stay at one step. Word of the hold can take longer than its lead; they pass it then, a step each pace, and
// whoever is in the middle of one when word comes ends it yet. It is believed after most at the latest.
func (b *Barrier) Held(pace Pace, most time.Duration, now time.Time) bool {
	rest := RestHeard
	switch {
	case b.heard == unheard, b.heard >= b.hold && pace.Beat == 0: // a coordinator that began in the middle knows of no beat
		rest = max(2*pace.Beat, restUnheard)
	case b.heard >= b.hold:
		rest = max(2*pace.Beat, RestHeard)
	}
	return b.seen.Common >= b.hold && b.seen.Common == b.seen.Told && now.Sub(b.still) >= min(rest, most)
}
