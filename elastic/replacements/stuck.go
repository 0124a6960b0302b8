package replacements

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

// stuckTime is how long a pod whose agent reports may keep its gang from halting. Where several do, and they are more than half of the
// gang's, what they wait for is likely one and the same, such as a file system, and may come back: they have PartitionTime, as those that
// are unreachable. Once they are not more than half any longer, it may just have come back: each that is left has stuckTime from then,
// within PartitionTime.
const stuckTime = 2 * time.Minute

// StuckEvery is how often these slots are checked: a halting large gang sends many reports. Between two checks at most StuckGap
// counts: in a longer gap the coordinator itself stood still and received nothing.
const (
	StuckEvery = time.Second
	StuckGap   = 2 * StuckEvery
)

// stuck is what is known of a slot whose agent reports, or did, and has not halted.
type stuck struct {
	// pod holds the slot; heard is for how long it reported in all that it has not halted, at when it did last. Time in which no report
	// arrives counts as unreachable.
	pod   string
	heard time.Duration
	at    time.Time
	// among is what heard was when more than half of the gang were last seen not to halt; 0: they never were.
	among time.Duration
}

// count counts on.
func (k *stuck) count(pod string, now time.Time) {
	switch {
	case k.pod != pod:
		*k = stuck{pod: pod}
	case !k.at.IsZero():
		k.heard += min(now.Sub(k.at), StuckGap)
	}
	k.at = now
}

// TrackStuck records slots whose agents report and that do not halt, and gives up those that took too long: they count as dead, so
// that their reports and copies are ignored.
func (w *Watch) TrackStuck(now time.Time) (notes []Note) {
	if now.Sub(w.stuckAt) < StuckEvery {
		return nil
	}
	w.stuckAt = now
	for i := range w.stuck {
		slot, k := members.Slot(i), &w.stuck[i]
		switch m := w.ms.At(slot); {
		case !w.Awaited(slot, now):
			*k = stuck{}
		case m.Attached():
			k.count(m.Pod().UID, now)
		default:
			k.at = time.Time{}
		}
	}
	most := w.mostStuck()
	if most {
		for i := range w.stuck {
			w.stuck[i].among = w.stuck[i].heard // of unreachable ones too: they have as long once they report
		}
	}
	for i, k := range w.stuck {
		slot := members.Slot(i)
		if k.at.IsZero() || k.heard < w.mayHaltFor(slot, most) || w.rs.Of(k.pod) != nil {
			continue
		}
		message := fmt.Sprintf("its processes of generation %d did not end within %s", w.generation, k.heard.Truncate(time.Second))
		notes = append(notes, w.giveUp(slot, w.ms.At(slot).Pod(), HaltTimeout, message, now))
	}
	return notes
}

// mostStuck: several slots report and do not halt, and they are more than half.
func (w *Watch) mostStuck() bool {
	n := 0
	for _, k := range w.stuck {
		if !k.at.IsZero() {
			n++
		}
	}
	return n > 1 && 2*n > len(w.stuck)
}

// mayHaltFor is how long a slot may take to halt in all; mostStuck: more than half do not halt now. What a terminating pod runs may handle
// SIGTERM for all of its grace, and what the others run beside it for as long.
func (w *Watch) mayHaltFor(slot members.Slot, mostStuck bool) time.Duration {
	r, most := w.ms.At(slot).Report(), PartitionTime
	if !mostStuck {
		most = min(most, w.stuck[slot].among+stuckTime)
	}
	if r.Terminating {
		most = max(most, r.Grace+HaltTime)
	}
	if w.within > 0 {
		most = max(most, w.within+HaltTime)
	}
	return most
}
