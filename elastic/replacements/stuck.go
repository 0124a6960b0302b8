package replacements

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

// stuckTime is how long a pod whose agent reports may keep its gang from halting. If several pods, and more than half of the gang, do not
// halt, they probably wait for one file system: then each of these pods has PartitionTime, like an unreachable pod. Once they are no longer
// more than half of the gang, each remaining pod has stuckTime from then on, within PartitionTime.
const stuckTime = 2 * time.Minute

// StuckEvery is the interval at which these slots are checked: a halting large gang sends many reports. Between two checks at most StuckGap
// counts: in a longer gap the coordinator itself was stopped and received nothing.
const (
	StuckEvery = time.Second
	StuckGap   = 2 * StuckEvery
)

// stuck is the state of a slot that has not halted and whose agent reports, or did.
type stuck struct {
	// pod holds the slot. reporting is the total time for which pod reported without having halted; time without reports counts as
	// unreachable. at is the time of the last such report.
	pod       string
	reporting time.Duration
	at        time.Time
	// among is reporting when more than half of the gang were last seen not to halt; 0: never.
	among time.Duration
}

// count adds the time since the last check.
func (k *stuck) count(pod string, now time.Time) {
	switch {
	case k.pod != pod:
		*k = stuck{pod: pod}
	case !k.at.IsZero():
		k.reporting += min(now.Sub(k.at), StuckGap)
	}
	k.at = now
}

// TrackStuck updates the slots whose agents report and that have not halted, and gives up those that took too long: they count as dead, so
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
			w.stuck[i].among = w.stuck[i].reporting // also of unreachable ones: the time counts once they report
		}
	}
	for i, k := range w.stuck {
		slot := members.Slot(i)
		if k.at.IsZero() || k.reporting < w.mayHaltFor(slot, most) || w.rs.Of(k.pod) != nil {
			continue
		}
		message := fmt.Sprintf("its processes of generation %d did not end within %s", w.generation, k.reporting.Truncate(time.Second))
		notes = append(notes, w.giveUp(slot, w.ms.At(slot).Pod(), HaltTimeout, message, now))
	}
	return notes
}

// mostStuck reports whether several slots report and do not halt, and these are more than half.
func (w *Watch) mostStuck() bool {
	n := 0
	for _, k := range w.stuck {
		if !k.at.IsZero() {
			n++
		}
	}
	return n > 1 && 2*n > w.ms.Parts()
}

// mayHaltFor returns how long a slot may take to halt; mostStuck: more than half do not halt now. Processes of a terminating pod may handle
// SIGTERM for all of its grace period, and those of the other pods for as long.
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
