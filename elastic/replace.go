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
//	   └── the termination is withdrawn: the pod stays
//
// A pod of which nothing runs (an orphan), and any before the first generation, is requested at once. From committed on the pod
// is fenced; a dead one is from the first.
type replaceStage int

const (
	// replaceNone: the pod need not go.
	replaceNone replaceStage = iota
	// replacePending: it is in Record.PendingReplacements.
	replacePending
	// replaceCommitted: it is in the account of a recovery, and Replace follows once that is stored. A coordinator that has only
	// begun is here again, so that Replace is emitted once in the life of each.
	replaceCommitted
	// replaceRequested: this coordinator has emitted Replace.
	replaceRequested
	// replaceReleased: the pod is out of its Job, and out of Record.PendingReplacements.
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
	if at := s.stages[pod]; at != replaceNone || s.terminationOf(pod) == nil {
		return at
	}
	return replacePending
}

// Fenced reports whether nothing that the pod says counts any more: it was replaced, is about to be, or counts as dead.
func (s *State) Fenced(pod string) bool {
	if s.stages[pod] >= replaceCommitted {
		return true
	}
	d := s.terminationOf(pod)
	return d != nil && d.Dead
}

// TakesOver reports whether a pod takes over its slot from old (package members).
func (s *State) TakesOver(p, old Pod) bool { return s.members.TakesOver(p, old, s.Fenced(old.UID)) }

// uncommitted returns the pods that must terminate and whose replacement is not committed yet.
func (s *State) uncommitted() []Termination { return s.pending(s.terminations()) }

// toReplace are those of them that are replaced.
func (s *State) toReplace() []Termination { return s.pending(s.Record.PendingReplacements) }

func (s *State) pending(terminations []Termination) []Termination {
	pending := []Termination{}
	for _, d := range terminations {
		if s.stage(d.Pod) == replacePending {
			pending = append(pending, d)
		}
	}
	return pending
}

// commit carries out terminations while everything is halted: it writes them into the account of the recovery. Once
// that is stored, Replace is emitted for each.
func (s *State) commit() {
	rec, terminations := s.openRecovery(), s.toReplace()
	if rec != nil {
		terminations = terminations[:min(len(terminations), s.mayCommit())] // the others when these are released
	}
	for _, d := range terminations {
		if rec == nil { // before the first generation of a launcher
			s.request(d)
			continue
		}
		r := Replacement{Termination: d}
		if m := s.members.At(d.Slot); m.Known() && m.Pod().UID != d.Pod {
			r.By, r.NewNode = m.Pod().Name, m.Pod().Node
		}
		rec.ReplacedPods = max(rec.ReplacedPods, len(rec.Replaced)) + 1
		rec.Replaced = append(slices.Clone(rec.Replaced), r)
		s.stages[d.Pod] = replaceCommitted
		s.blame(rec, d)
	}
	if len(terminations) > 0 {
		s.save()
		s.emit(Broadcast{})
	}
}

// request has a pod replaced.
func (s *State) request(d Termination) {
	s.stages[d.Pod] = replaceRequested
	s.emit(Replace{d})
}

// requestCommitted emits Replace for what is committed, once that is stored.
func (s *State) requestCommitted() {
	if s.storedRevision < s.revision {
		return
	}
	for _, d := range s.Record.PendingReplacements {
		if s.stage(d.Pod) == replaceCommitted {
			s.request(d)
		}
	}
}

// requestOrphans releases pods of which nothing runs: another pod holds the slot, or held it last. Where a newer pod
// took over, the account of the recovery covers it instead.
func (s *State) requestOrphans() {
	if s.storedRevision < s.revision {
		return
	}
	for _, d := range s.Record.PendingReplacements {
		if s.orphan(d) && s.stage(d.Pod) < replaceRequested && (!s.members.Superseded(d.Pod) || s.lost(d.Slot) == nil) {
			s.request(d)
		}
	}
}

// release takes note that a pod is out of its job.
func (s *State) release(e Released, now time.Time) {
	d := s.pendingOf(e.Pod)
	if d == nil || s.stage(e.Pod) < replaceCommitted {
		return
	}
	if r := s.Record.replacement(e.Pod); r != nil {
		r.ReleasedAt = e.At
	}
	s.stages[e.Pod] = replaceReleased
	s.Record.Replacements++
	s.members.Detach(d.Slot, e.Pod)
	released := func(o Termination) bool { return o.Pod == e.Pod }
	s.Record.PendingReplacements = slices.DeleteFunc(slices.Clone(s.Record.PendingReplacements), released)
	s.Record.Suspended = slices.DeleteFunc(slices.Clone(s.Record.Suspended), released)
	s.refresh()
	s.save()
	s.emit(Broadcast{})
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

// blame attributes a failure to the node when it turns out, during the repair, that the rank which failed first was on
// a sick node. A pod that was given up here does not mean a sick node: what was counted stays so.
func (s *State) blame(rec *Recovery, d Termination) {
	c := &rec.Cause
	if d.Cause == PodDeleted || d.givenUp() || d.Cause == HardwareSuspected || Slot(c.Slot) != d.Slot || c.Displaced() || c.Code == cause.PortConflict {
		return
	}
	c.Message = cause.Tail(fmt.Sprintf("%s: %s; seen first: %s: %s", d.where(), d.why(), c.Code, lastLine(c.Message)), keptMessage)
	c.Code = cause.PodReplaced
	s.Record.refund()
}

// succeeded records the pod that takes the place of a replaced one.
func (s *State) succeeded(slot Slot, now time.Time) {
	rec := s.lastRecovery()
	if rec == nil {
		return
	}
	m := s.members.At(slot)
	for i := range rec.Replaced {
		r := &rec.Replaced[i]
		if r.Slot != slot || r.Pod == m.Pod().UID || !r.AttachedAt.IsZero() {
			continue
		}
		rec.Replaced = slices.Clone(rec.Replaced)
		r = &rec.Replaced[i]
		r.By, r.NewNode, r.AttachedAt = m.Pod().Name, m.Pod().Node, now
		where := ""
		if m.Pod().Node != "" {
			where = " on node " + m.Pod().Node
		}
		s.emit(EmitEvent{Notice{Reason: NoticeReplaced, Message: fmt.Sprintf("%s of slot %d is replaced by pod %s%s", r.where(), slot, m.Pod().Name, where)}})
		s.emit(PersistLater{})
	}
}
