// Package replacements records which pods of a gang must be replaced, the reason for each (a Termination), and the stage of each
// replacement. A pod leaves the list when it is released from its Job, and never returns to it. A Termination leaves the list earlier only
// if it can be withdrawn. The reports of a pod are ignored from the time when its replacement is committed. Each coordinator process
// requests the replacement of a pod at most once.
package replacements

import (
	"slices"

	"holdfast.dev/holdfast/elastic/members"
)

// stage is the progress of a pod's replacement.
//
//	pending ── all ranks are halted, and the state is copied if due ──► committed ── stored ──► requested ── NoteReleased ──► released
//	   └── the termination is withdrawn: the pod stays
//
// For a pod in which nothing runs (an orphan), and for any before the first generation, the replacement is requested at once. A pod is
// fenced from committed on, a dead one from the first stage.
type stage int

const (
	// none: the pod stays.
	none stage = iota
	// pending: it is listed.
	pending
	// committed: it is in the account of a recovery, and Replace follows once that is stored. A restarted coordinator returns to this
	// stage, so each coordinator emits Replace once.
	committed
	// requested: this coordinator has emitted Replace.
	requested
	// released: the pod is out of its Job, and out of the list.
	released
)

// Replacements are the pods of a gang that must terminate.
type Replacements struct {
	ms *members.Members
	// pending are those that must be replaced and were not yet, suspended those that terminate because their Job is suspended (suspend.go).
	pending, suspended []Termination
	// byPod has their entries, those of pending before others; nil: the lists have changed since.
	byPod map[string]*Termination
	// stages are those from committed on, by pod.
	stages map[string]stage
	// count is the number of replaced pods.
	count int
}

// New returns the recorded state: the lists, the number of replaced pods, and the replacements that are carried out or committed.
func New(ms *members.Members, pending, suspended []Termination, count int, replaced []Replacement) *Replacements {
	rs := &Replacements{ms: ms, pending: pending, suspended: suspended, stages: map[string]stage{}, count: count}
	for _, o := range replaced {
		rs.stages[o.Pod] = committed
		if !o.ReleasedAt.IsZero() {
			rs.stages[o.Pod] = released
		}
	}
	return rs
}

// Count returns the number of replaced pods.
func (rs *Replacements) Count() int { return rs.count }

// stage returns the progress of a pod's replacement.
func (rs *Replacements) stage(pod string) stage {
	if at := rs.stages[pod]; at != none || rs.Of(pod) == nil {
		return at
	}
	return pending
}

// Fenced reports whether the reports of the pod are ignored: it was replaced, is about to be, or counts as dead.
func (rs *Replacements) Fenced(pod string) bool {
	if rs.stages[pod] >= committed {
		return true
	}
	d := rs.Of(pod)
	return d != nil && d.Dead
}

// Released reports whether the pod is released from its Job.
func (rs *Replacements) Released(pod string) bool { return rs.stages[pod] == released }

// Commit commits at most that many terminations while all ranks are halted; the caller writes them into the account of the recovery. After
// that is stored, RequestCommitted requests each.
func (rs *Replacements) Commit(most int) []Termination {
	all := rs.ToReplace()
	all = all[:min(len(all), most)] // the others follow when these are released
	for _, d := range all {
		rs.stages[d.Pod] = committed
	}
	return all
}

// RequestAll requests the replacement of all pending pods: before the first generation of a launcher.
func (rs *Replacements) RequestAll() []Termination { return rs.request(rs.ToReplace()) }

// RequestCommitted requests the committed replacements after they are stored.
func (rs *Replacements) RequestCommitted() []Termination {
	return rs.request(slices.DeleteFunc(slices.Clone(rs.pending), func(d Termination) bool { return rs.stage(d.Pod) != committed }))
}

// RequestOrphans requests the replacement of pods in which nothing runs: another pod holds the slot, or held it last. If a newer pod took
// over and ranks are lost with the older one, the account of the recovery lists that instead.
func (rs *Replacements) RequestOrphans(lost func(members.Slot) bool) []Termination {
	return rs.request(slices.DeleteFunc(slices.Clone(rs.pending), func(d Termination) bool {
		return !rs.ms.Orphan(d.Slot, d.Pod) || rs.stage(d.Pod) >= requested || rs.ms.Superseded(d.Pod) && lost(d.Slot)
	}))
}

// RequestOut requests the replacement of pods that take no part: nothing of the gang runs there.
func (rs *Replacements) RequestOut() []Termination {
	return rs.request(slices.DeleteFunc(slices.Clone(rs.pending), func(d Termination) bool {
		return rs.ms.Takes(d.Slot) || rs.stage(d.Pod) >= requested
	}))
}

func (rs *Replacements) request(all []Termination) []Termination {
	for _, d := range all {
		rs.stages[d.Pod] = requested
	}
	return all
}

// NoteReleased records that a pod is released from its job; false: its replacement was not requested.
func (rs *Replacements) NoteReleased(pod string) bool {
	d := ofPod(rs.pending, pod)
	if d == nil || rs.stage(pod) < committed {
		return false
	}
	rs.ms.Detach(d.Slot, pod)
	rs.stages[pod] = released
	rs.count++
	gone := func(o Termination) bool { return o.Pod == pod }
	rs.set(slices.DeleteFunc(slices.Clone(rs.pending), gone), slices.DeleteFunc(slices.Clone(rs.suspended), gone))
	return true
}

// Pressing returns the first termination that ends the running generation; nil: none does. lost reports whether ranks of a slot are lost.
func (rs *Replacements) Pressing(lost func(members.Slot) bool) *Termination {
	for _, d := range rs.All() {
		if !rs.ms.Takes(d.Slot) || rs.ms.Orphan(d.Slot, d.Pod) && !lost(d.Slot) || rs.stage(d.Pod) >= committed {
			continue
		}
		if rs.ms.HasLeft(d.Slot) && d.Cause != JobSuspended {
			continue // none of its ranks runs, and the gang could not run again without them
		}
		return &d
	}
	return nil
}
