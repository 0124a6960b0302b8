// Package barrier chooses the barrier step, at which all ranks of a gang stop during a drain, and determines when all ranks have stopped
// there. The barrier step is greater than the newest step that any rank has reported when the barrier step is chosen. The package only
// raises the barrier step, and only if the ranks can no longer all stop at the present one. Ranks count as stopped when all hold the same
// step at or beyond the barrier step, and no rank has made progress for a while. This while is long enough for the barrier step to reach
// every rank, and has a maximum.
package barrier

import "time"

const (
	// LeadTime is how far ahead of the newest reported step the barrier is set, so that every rank receives it before reaching it;
	// leadMost bounds it in steps, leadUnknown is used while the pace is unknown.
	LeadTime    = 300 * time.Millisecond
	leadMost    = 1000
	leadUnknown = 2
	// RestConfirmed is how long no rank may have moved before they count as staying; restUnconfirmed is the same while some agent has not
	// confirmed that it passed the step to its ranks.
	RestConfirmed, restUnconfirmed = 100 * time.Millisecond, time.Second
)

// Levels are the progress of a gang's ranks: the newest step that any reports, the lowest that each reports, the newest that any holds, the
// newest that all hold.
type Levels struct{ Reported, LowestReported, Newest, CommonStep int64 }

// Pace is the duration of a step, and the time from one report to the next, which may be many steps later; 0: unknown.
type Pace struct{ Step, Interval time.Duration }

// lead returns how many steps ahead the barrier is set.
func (p Pace) lead() int64 {
	if p.Step <= 0 {
		return leadUnknown
	}
	return min(1+int64((LeadTime+p.Step-1)/p.Step), leadMost)
}

// Barrier is the step at which ranks stay; the zero Barrier: none is chosen.
type Barrier struct {
	step   int64
	raised bool
	// confirmedAt is the newest reported step when all agents had confirmed the barrier; unconfirmed before.
	confirmedAt int64
	// seen is the ranks' last progress, still since when it has not changed.
	seen  Levels
	still time.Time
}

const unconfirmed = -1

// Step returns the step at which ranks stay; 0 where none is chosen yet.
func (b *Barrier) Step() int64 { return b.step }

// Note records the ranks' progress, and whether all agents have passed the barrier step to their ranks.
func (b *Barrier) Note(seen Levels, passed bool, now time.Time) {
	if seen != b.seen {
		b.seen, b.still = seen, now
	}
	switch {
	case !passed: // or no longer: an agent without a coordinator releases its ranks
		b.confirmedAt = unconfirmed
	case b.confirmedAt == unconfirmed:
		b.confirmedAt, b.still = seen.Reported, now
	}
}

// Move chooses the barrier step. Move moves the step when ranks can no longer meet there: once, if each rank has saved a step at or beyond
// it (lowestNewest is the lowest of these) but not the same one; and whenever they have been stalled for longer than timeout. Move reports
// whether the step changed.
func (b *Barrier) Move(pace Pace, lowestNewest int64, timeout time.Duration, now time.Time) bool {
	apart := b.step != 0 && b.seen.CommonStep < b.step && lowestNewest >= b.step && !b.raised
	if b.step != 0 && !apart && !b.stalled(pace, timeout, now) {
		return false
	}
	b.step, b.confirmedAt, b.raised, b.still = b.seen.Reported+pace.lead(), unconfirmed, b.raised || apart, now
	return true
}

// stalled reports whether some ranks stay at the barrier while others finished that step without saving it and wait for them in a
// collective.
func (b *Barrier) stalled(pace Pace, timeout time.Duration, now time.Time) bool {
	held := b.seen.Newest >= b.step && b.seen.LowestReported >= b.step
	return held && b.seen.CommonStep < b.seen.Reported && now.Sub(b.still) > max(timeout, 2*pace.Step)
}

// Ahead estimates how long ranks take to reach the barrier step; 0: unknown.
func (b *Barrier) Ahead(pace Pace) time.Duration {
	return pace.Step * time.Duration(b.step-b.seen.Reported)
}

// AtBarrier reports whether all ranks stay at one step. Ranks that receive the barrier late finish their present step first. After most
// without progress they count as staying.
func (b *Barrier) AtBarrier(pace Pace, most time.Duration, now time.Time) bool {
	rest := RestConfirmed
	switch {
	case b.confirmedAt == unconfirmed,
		b.confirmedAt >= b.step && pace.Interval == 0: // a restarted coordinator knows no interval
		rest = max(2*pace.Interval, restUnconfirmed)
	case b.confirmedAt >= b.step:
		rest = max(2*pace.Interval, RestConfirmed)
	}
	return b.seen.CommonStep >= b.step && b.seen.CommonStep == b.seen.Reported && now.Sub(b.still) >= min(rest, most)
}
