package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// replaceStage is how far the replacement of a pod has come.
//
//	pending ──── everything is halted, and what was to be copied is ────► committed ── stored ──► requested ── Released ──► released
//	   └── the doom is withdrawn: the pod stays
//
// A pod of which nothing runs (an orphan), and any before the first generation, is requested at once. From committed on the pod
// is fenced; a dead one is from the first.
type replaceStage int

const (
	// replaceNone: the pod need not go.
	replaceNone replaceStage = iota
	// replacePending: it is in Record.Doomed.
	replacePending
	// replaceCommitted: it is in the account of a recovery, and Replace follows once that is stored. A coordinator that has only
	// begun is here again, so that Replace is emitted once in the life of each.
	replaceCommitted
	// replaceRequested: this coordinator has emitted Replace.
	replaceRequested
	// replaceReleased: the pod is out of its Job, and out of Record.Doomed.
	replaceReleased
)

// replacements are the pods that the record says are, or are about to be, replaced.
func (r *Record) replacements() map[string]replaceStage {
	out := map[string]replaceStage{}
	for i := range r.Recoveries {
		for _, o := range r.Recoveries[i].Replaced {
			out[o.Pod] = replaceCommitted
			if !o.ReleasedAt.IsZero() {
				out[o.Pod] = replaceReleased
			}
		}
	}
	return out
}

// stage is how far the replacement of a pod has come.
func (s *State) stage(pod string) replaceStage {
	if at := s.stages[pod]; at != replaceNone || s.doomOfPod(pod) == nil {
		return at
	}
	return replacePending
}

// superseded: a newer pod took the slot over from this one.
func (s *State) superseded(pod string) bool { return s.past[pod] }

// Fenced says whether nothing that the pod says counts: it was, or is about to be, replaced, or it counts as dead.
func (s *State) Fenced(pod string) bool {
	if s.stages[pod] >= replaceCommitted {
		return true
	}
	d := s.doomOfPod(pod)
	return d != nil && d.Dead
}

// TakesOver says whether a pod takes its slot over from old. Pods are made within one second where one is
// replaced at once: then it counts that the old one was fenced. Of pods in the API server membership.Holders says it.
func (s *State) TakesOver(p, old Pod) bool {
	return p.Newer(old) || p.UID != old.UID && s.Fenced(old.UID) && p.Created.Equal(old.Created) && !s.superseded(p.UID)
}

// passOn gives a slot to another pod; what was known of the one that held it is no more.
func (s *State) passOn(slot Slot, to Pod) {
	s.past[s.slots[slot].pod.UID] = true
	s.slots[slot] = member{pod: to}
	if h := s.run.halting; h != nil {
		h.silence[slot] = silence{}
	}
	s.ranked = nil
}

// pendingDooms are those that are not carried out yet.
func (s *State) pendingDooms() []Doom {
	pending := []Doom{}
	for _, d := range s.Record.Doomed {
		if s.stage(d.Pod) == replacePending {
			pending = append(pending, d)
		}
	}
	return pending
}

// toReplace are pendingDooms without pods that go because their Job rests.
func (s *State) toReplace() []Doom {
	return slices.DeleteFunc(s.pendingDooms(), Doom.rests)
}

// commit carries dooms out while everything is halted: they are written into the account of the recovery,
// and once that is stored Replace is asked for each.
func (s *State) commit() {
	dooms := s.toReplace()
	for _, d := range dooms {
		rec := s.openRecovery()
		if rec == nil { // before the first generation
			s.request(d)
			continue
		}
		r := Replacement{Doom: d}
		if m := &s.slots[d.Slot]; m.known && m.pod.UID != d.Pod {
			r.By, r.NewNode = m.pod.Name, m.pod.Node
		}
		rec.Replaced = append(slices.Clone(rec.Replaced), r)
		s.stages[d.Pod] = replaceCommitted
		s.blame(rec, d)
	}
	if len(dooms) > 0 {
		s.save()
		s.emit(Direct{})
	}
}

// request has a pod replaced.
func (s *State) request(d Doom) {
	s.stages[d.Pod] = replaceRequested
	s.emit(Replace{d})
}

// requestCommitted requests what is committed, once that is stored.
func (s *State) requestCommitted() {
	if s.storedRevision < s.revision {
		return
	}
	for _, d := range s.Record.Doomed {
		if s.stage(d.Pod) == replaceCommitted {
			s.request(d)
		}
	}
}

// requestOrphans has doomed pods released of which nothing runs: another pod holds the slot, or held it last. What
// a newer pod took over from goes into the account of the recovery instead.
func (s *State) requestOrphans() {
	if s.storedRevision < s.revision {
		return
	}
	for _, d := range s.Record.Doomed {
		if !d.rests() && s.orphan(d) && s.stage(d.Pod) < replaceRequested && (!s.superseded(d.Pod) || s.lost(d.Slot) == nil) {
			s.request(d)
		}
	}
}

// release takes note that a pod is out of its job.
func (s *State) release(e Released, now time.Time) {
	d := s.doomOfPod(e.Pod)
	if d == nil || s.stage(e.Pod) < replaceCommitted {
		return
	}
	if r := s.Record.replacement(e.Pod); r != nil {
		r.ReleasedAt = e.At
	}
	s.stages[e.Pod] = replaceReleased
	s.Record.Replacements++
	if m := &s.slots[d.Slot]; m.pod.UID == e.Pod {
		m.attached = false
	}
	s.Record.Doomed = slices.DeleteFunc(slices.Clone(s.Record.Doomed), func(o Doom) bool { return o.Pod == e.Pod })
	s.refresh(now)
	s.save()
	s.emit(Direct{})
}

// replacement is the newest account of a pod's replacement.
func (r *Record) replacement(pod string) *Replacement {
	for i := len(r.Recoveries) - 1; i >= 0; i-- {
		all := r.Recoveries[i].Replaced
		for j := range all {
			if all[j].Pod == pod {
				return &all[j]
			}
		}
	}
	return nil
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
	s.Record.giveBack()
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
