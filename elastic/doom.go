package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

const (
	// doomTime is how long a doomed pod's state may be waited for where nobody says.
	doomTime = 30 * time.Second
	// haltTime is how long a doomed pod may take to halt; then it is left behind.
	haltTime = 10 * time.Second
)

// A doom goes through three stations. It is known (Record.Doomed) and can be withdrawn; it is committed (in
// Replaced of the open recovery, or asked) once everything is halted, and Replace is emitted as soon as that
// is stored; it is released when Released comes, and then it is out of Record.Doomed. From the second
// station on the pod is fenced; a dead one is from the first.

// doomed takes the level over.
func (s *State) doomed(pods []Doom, now time.Time) {
	if s.Final() || s.over {
		return
	}
	next := []Doom{}
	for _, d := range s.Record.Doomed {
		if s.mustStay(d) && !slices.ContainsFunc(pods, func(o Doom) bool { return o.Pod == d.Pod }) {
			next = append(next, d)
		}
	}
	for _, d := range pods {
		if int(d.Slot) < 0 || int(d.Slot) >= len(s.slots) || s.released(d.Pod) || s.takenOver(d) {
			continue
		}
		d.Message = cause.Tail(d.Message, keptMessage)
		switch old := s.doomOfPod(d.Pod); {
		case old == nil || old.rests() != d.rests() && old.Cause != AgentSilent:
			s.announce(&d, now)
		case old.Cause == AgentSilent:
			d = *old // what was given up stays so, whatever its node turns out to be
		default:
			d.keeps(*old)
		}
		next = append(next, d)
	}
	slices.SortFunc(next, func(a, b Doom) int { return int(a.Slot) - int(b.Slot) })
	s.withdrawn(next)
	if slices.Equal(next, s.Record.Doomed) {
		return
	}
	s.Record.Doomed = next
	for _, d := range next {
		if m := &s.slots[d.Slot]; d.Dead && m.pod.UID == d.Pod {
			m.attached = false
		}
	}
	s.refresh(now)
	s.save()
	s.emit(Direct{})
}

// rests: the pod goes because its Job is suspended.
func (d Doom) rests() bool { return d.Cause == JobSuspended }

// keeps takes the times of a doom that is told again. How long pods of a suspended Job may be waited for is known once
// they are deleted; what has to leave its place has the time that it was given first.
func (d *Doom) keeps(old Doom) {
	d.At = old.At
	if !d.rests() || d.Deadline.IsZero() {
		d.Deadline = old.Deadline
	}
}

// announce gives a new doom its times and tells people.
func (s *State) announce(d *Doom, now time.Time) {
	if d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = now.Add(doomTime)
	}
	if d.rests() {
		return // people asked for it, of all pods at once
	}
	s.emit(Tell{Notice{Warning: true, Reason: NoticeDoomed, Message: fmt.Sprintf("%s of slot %d is to be replaced: %s", d.where(), d.Slot, d.why())}})
}

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

func (d Doom) where() string {
	if d.Node == "" {
		return "pod " + d.Name
	}
	return fmt.Sprintf("pod %s on node %s", d.Name, d.Node)
}

func (d Doom) why() string {
	if d.Message == "" {
		return d.Cause
	}
	return d.Cause + ": " + d.Message
}

// withdrawn tells of dooms that are no more.
func (s *State) withdrawn(next []Doom) {
	for _, d := range s.Record.Doomed {
		if !d.rests() && !slices.ContainsFunc(next, func(o Doom) bool { return o.Pod == d.Pod }) {
			s.emit(Tell{Notice{Reason: NoticeDoomed, Message: fmt.Sprintf("%s of slot %d stays: %s is over", d.where(), d.Slot, d.Cause)}})
		}
	}
}

// mustStay says whether a doom cannot be withdrawn any more: it was carried out, the pod is being deleted, or this
// package itself has given it up. That a Job rests is over when it goes on, whatever its pods were told meanwhile.
func (s *State) mustStay(d Doom) bool {
	m := &s.slots[d.Slot]
	leaves := m.known && m.pod.UID == d.Pod && m.report.Leaving
	return s.committed(d.Pod) || d.Cause == PodDeleted || d.Cause == AgentSilent || d.Cause == HardwareSuspected || leaves && !d.rests()
}

// takenOver says whether the slot has a newer pod already and nothing is known of this one.
func (s *State) takenOver(d Doom) bool {
	return s.isPast(d.Pod) && s.doomOfPod(d.Pod) == nil
}

// isPast: a newer pod took the slot over from this one.
func (s *State) isPast(pod string) bool { return s.past[pod] }

func (s *State) doomOfPod(pod string) *Doom {
	for i := range s.Record.Doomed {
		if s.Record.Doomed[i].Pod == pod {
			return &s.Record.Doomed[i]
		}
	}
	return nil
}

// doom is why the pod that holds a slot must go; nil: it need not.
func (s *State) doom(slot Slot) *Doom {
	for i := range s.Record.Doomed {
		if d := &s.Record.Doomed[i]; d.Slot == slot && (!s.slots[slot].known || s.slots[slot].pod.UID == d.Pod) {
			return d
		}
	}
	return nil
}

// openRecovery is the account of the repair that is under way; nil: none is.
func (s *State) openRecovery() *Recovery {
	if rec := s.lastRecovery(); rec != nil && rec.Generation > s.Record.Generation {
		return rec
	}
	return nil
}

// replacement is the newest account of a pod's replacement.
func (s *State) replacement(pod string) *Replacement {
	for i := len(s.Record.Recoveries) - 1; i >= 0; i-- {
		all := s.Record.Recoveries[i].Replaced
		for j := range all {
			if all[j].Pod == pod {
				return &all[j]
			}
		}
	}
	return nil
}

// committed: the pod was, or is about to be, asked to be replaced.
func (s *State) committed(pod string) bool {
	return s.asked[pod] || s.replacement(pod) != nil
}

// released: the pod is out of its job.
func (s *State) released(pod string) bool {
	r := s.replacement(pod)
	return s.gone[pod] || r != nil && !r.ReleasedAt.IsZero()
}

// Fenced says whether nothing that the pod says counts: it was replaced, or it counts as dead.
func (s *State) Fenced(pod string) bool {
	d := s.doomOfPod(pod)
	return s.committed(pod) || s.released(pod) || d != nil && d.Dead
}

// takesOver says whether a pod takes the slot over from old. Pods are made within one second where one is
// replaced at once: then it counts that the old one was fenced.
func (s *State) takesOver(p, old Pod) bool {
	return p.Newer(old) || s.Fenced(old.UID) && p.Created.Equal(old.Created) && !s.isPast(p.UID)
}

// leaving notes when a pod was first told to end. It is no doom: whether the pod is deleted, or has ended what
// it was made for, the API server alone knows.
func (s *State) leaving(slot Slot, now time.Time) {
	if m := &s.slots[slot]; m.report.Leaving && m.leavingAt.IsZero() {
		m.leavingAt = now
	}
}

// out says whether the pod of a slot is not waited for when everything halts: it is fenced, or it is doomed
// and has had its time.
func (s *State) out(slot Slot, now time.Time) bool {
	d := s.doom(slot)
	if d == nil {
		return false
	}
	return s.Fenced(d.Pod) || now.After(s.deadline(*d)) && now.Sub(s.run.halting.detected) > haltTime
}

// deadline is until when a doomed pod's state may be waited for. A pod that is being shut down keeps some of
// its grace for stopping.
func (s *State) deadline(d Doom) time.Time {
	m := &s.slots[d.Slot]
	if m.pod.UID != d.Pod || m.leavingAt.IsZero() {
		return d.Deadline
	}
	grace := m.report.Grace
	if grace == 0 {
		grace = doomTime
	}
	if at := m.leavingAt.Add(grace - grace/5); at.Before(d.Deadline) {
		return at
	}
	return d.Deadline
}

// doomCause is the failure that the dooms stand for; nil: there is none.
func (s *State) doomCause() *cause.Cause {
	for _, d := range s.Record.Doomed {
		if s.orphan(d) && s.lost(d.Slot) == nil || s.committed(d.Pod) {
			continue
		}
		return s.lossOf(d)
	}
	return nil
}

// lossOf is the cause of a generation's end that a doom stands for.
func (s *State) lossOf(d Doom) *cause.Cause {
	c := &cause.Cause{Code: cause.PodReplaced, Slot: int(d.Slot), Rank: s.baseRank(d.Slot), Message: fmt.Sprintf("%s: %s", d.where(), d.why())}
	switch {
	case d.rests():
		c.Code, c.Message = cause.JobSuspended, "the Job is suspended"
	case d.Cause == AgentSilent:
		c.Code = cause.PodLost // nobody says that it had to leave its place: what falls silent again and again is counted
	}
	return c
}

// orphan: another pod holds the slot of a doomed one.
func (s *State) orphan(d Doom) bool {
	m := &s.slots[d.Slot]
	return m.known && m.pod.UID != d.Pod
}

// askOrphans has doomed pods released of which nothing runs: another pod holds the slot, or held it last. What
// a newer pod took over from goes into the account of the recovery instead.
func (s *State) askOrphans() {
	for _, d := range s.Record.Doomed {
		if !d.rests() && s.orphan(d) && (s.lost(d.Slot) == nil || !s.isPast(d.Pod)) && !s.asked[d.Pod] && s.storedRevision >= s.revision {
			s.asked[d.Pod] = true
			s.emit(Replace{d})
		}
	}
}

// commit carries dooms out while everything is halted: they are written into the account of the recovery,
// and once that is stored Replace is asked for each.
func (s *State) commit() {
	fresh := false
	for _, d := range s.Record.Doomed {
		if s.committed(d.Pod) || d.rests() {
			continue
		}
		fresh = true
		if rec := s.openRecovery(); rec != nil {
			r := Replacement{Doom: d}
			if m := &s.slots[d.Slot]; m.known && m.pod.UID != d.Pod {
				r.By, r.NewNode = m.pod.Name, m.pod.Node
			}
			rec.Replaced = append(slices.Clone(rec.Replaced), r)
			s.blame(rec, d)
		} else { // before the first generation
			s.asked[d.Pod] = true
			s.emit(Replace{d})
		}
	}
	if fresh {
		s.save()
		s.emit(Direct{})
	}
}

// blame puts a failure down to the node where it turns out, while it is being repaired, that the rank which
// failed first was on a sick one. A pod that nobody hears is no sick node: what was counted stays so.
func (s *State) blame(rec *Recovery, d Doom) {
	c := &rec.Cause
	if d.Cause == PodDeleted || d.Cause == AgentSilent || d.Cause == HardwareSuspected || Slot(c.Slot) != d.Slot || c.Displaced() || c.Code == cause.PortConflict {
		return
	}
	c.Message = cause.Tail(fmt.Sprintf("%s: %s; seen first: %s: %s", d.where(), d.why(), c.Code, lastLine(c.Message)), keptMessage)
	c.Code = cause.PodReplaced
	s.Record.Restarts, s.Record.WithoutProgress = max(0, s.Record.Restarts-1), max(0, s.Record.WithoutProgress-1)
}

// ask emits Replace for what is committed and stored, once in this life of the coordinator.
func (s *State) ask() {
	if s.storedRevision < s.revision {
		return
	}
	for _, d := range s.Record.Doomed {
		if s.committed(d.Pod) && !s.asked[d.Pod] {
			s.asked[d.Pod] = true
			s.emit(Replace{d})
		}
	}
}

// release takes note that a pod is out of its job.
func (s *State) release(e Released, now time.Time) {
	d := s.doomOfPod(e.Pod)
	if d == nil || !s.committed(e.Pod) {
		return
	}
	if r := s.replacement(e.Pod); r != nil {
		r.ReleasedAt = e.At
	}
	s.gone[e.Pod] = true
	s.Record.Replacements++
	if m := &s.slots[d.Slot]; m.pod.UID == e.Pod {
		m.attached = false
	}
	s.Record.Doomed = slices.DeleteFunc(slices.Clone(s.Record.Doomed), func(o Doom) bool { return o.Pod == e.Pod })
	s.refresh(now)
	s.save()
	s.emit(Direct{})
}

// succeeded takes note of a pod that takes the place of a replaced one.
func (s *State) succeeded(slot Slot, now time.Time) {
	rec := s.lastRecovery()
	if rec == nil {
		return
	}
	m := &s.slots[slot]
	for i := range rec.Replaced {
		r := &rec.Replaced[i]
		if r.Slot != slot || r.Pod == m.pod.UID || !r.AttachedAt.IsZero() {
			continue
		}
		rec.Replaced = slices.Clone(rec.Replaced)
		r = &rec.Replaced[i]
		r.By, r.NewNode, r.AttachedAt = m.pod.Name, m.pod.Node, now
		where := ""
		if m.pod.Node != "" {
			where = " on node " + m.pod.Node
		}
		s.emit(Tell{Notice{Reason: NoticeReplaced, Message: fmt.Sprintf("%s of slot %d is replaced by pod %s%s", r.where(), slot, m.pod.Name, where)}})
		s.emit(Touch{})
	}
}

// Ticks says whether Tick is wanted every so often.
func (s *State) Ticks() bool {
	return (len(s.Record.Doomed) > 0 || s.Record.Phase == Halting) && !s.Final() && !s.over
}
