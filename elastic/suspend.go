package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// rests: the pod goes because its Job is suspended.
func (d Doom) rests() bool { return d.Cause == JobSuspended }

// rests says whether the pod of a slot goes because its Job is suspended.
func (s *State) rests(slot Slot) bool {
	d := s.doom(slot)
	return d != nil && d.rests()
}

// mayRest says whether a pod of a suspended Job has nothing to do any more: everything is halted, and what could be
// copied is, and that is stored.
func (s *State) mayRest(slot Slot, pod string) bool {
	m := &s.slots[slot]
	return s.Record.Phase == Forming && s.rests(slot) && m.pod.UID == pod && m.report.Leaving && s.halted(m) && s.run.salvage == (Mark{}) && !s.mayBeHeard(s.now) && s.storedRevision >= s.revision
}

// resumed begins the account of a rest anew where the first pod after it comes: to rest costs no training.
func (s *State) resumed(p Pod, now time.Time) {
	if rec := s.openRecovery(); rec != nil && s.Record.Phase == Forming && rec.Cause.Code == cause.JobSuspended && p.Created.After(rec.DetectedAt) {
		rec.DetectedAt, rec.Drain = now, NotReached
	}
}
