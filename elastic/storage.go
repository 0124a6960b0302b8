package elastic

import (
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// noPoint: nothing is to be restored.
var noPoint restore.Point

// gathered reports whether every rank holds the newest available step. It is valid after gather.
func (s *State) gathered() bool {
	_, durable := s.ledger.Newest()
	return len(s.run.forming.fetching.Fetch) == 0 && (s.run.forming.fetching.Step > 0 || !durable)
}

// gather makes every rank fetch what it lacks of the newest available step, before a generation begins.
func (s *State) gather(now time.Time) {
	f := s.run.forming
	if f.readyAt.IsZero() {
		f.readyAt = now
	}
	p := f.fetching
	if !f.planned {
		p = s.planAll()
		f.planned = true
	}
	if p.Point != f.fetching.Point || !maps.Equal(p.Fetch, f.fetching.Fetch) {
		s.emit(Broadcast{})
	}
	f.fetching = p
	s.announceUnreadable()
	if f.fetched && len(p.Fetch) == 0 && len(f.checking.trials) == 0 {
		s.account.NoteFetched(s.generation.Number, now.Sub(f.readyAt))
	}
	f.fetched = f.fetched || len(p.Fetch) > 0
}

// planAll plans for pods that are all present.
func (s *State) planAll() restore.Point {
	pods, g := s.members.Pods(s.ledger.Line(), members.NoneLost), s.generation.Stored()
	s.ledger.ForgetPast(pods, g)
	p := s.ledger.Plan(pods, g, false)
	if p.Step == 0 {
		p = s.ledger.Plan(pods, g, true)
	}
	if c := s.account.Repairing(g.Number); c != nil && c.Suspect == cause.SuspectTransfer { // what was given was damaged
		if q := s.ledger.Plan(restore.Ungiven(pods), g, false); q.Point == p.Point {
			p = q
		}
	}
	older := func(m protocol.Mark) bool { return m.Generation < g.Number }
	if g.Unknown && slices.ContainsFunc(slices.Collect(maps.Values(p.Fetch)), older) {
		// The step is in storage and in an outdated record: all that pods hold is newer, and given up. The record is updated here, also for
		// the next coordinator, which then finds the step in the memory of pods that have fetched it.
		s.generation.RestoreStep, s.generation.RestoreBranch = p.Step, p.Branch
		s.ledger.Forget(p.Point, pods, s.generation.Stored())
		s.save()
	}
	return p
}

// preserve copies a step of all ranks to storage at the interval.
func (s *State) preserve(now time.Time) {
	if !s.ledger.Copies() || !s.members.All(func(m *members.Member) bool { return m.UsesStorage(s.generation.Number) }) {
		return
	}
	newest := func() ledger.Candidate {
		return ledger.Candidate{Mark: s.generation.Mark(s.generation.CommonStep()), SealedAt: s.account.Figures().SavedAt}
	}
	if s.ledger.TakeNext(s.members, newest, s.account.StartedAt(), now) {
		s.emit(Broadcast{})
	}
}

// confirm records a step as durable once its manifest is written, also while the gang is halting. A manifest of a fenced pod is not
// recorded.
func (s *State) confirm(now time.Time) {
	if s.replacements.AnyFenced() {
		if s.ledger.DropOrder() {
			s.emit(Broadcast{})
		}
		return
	}
	m := s.members.At(s.members.First())
	if mark := m.Report().Manifested; m.Known() && s.ledger.RecordManifest(mark, s.generation.Stored(), s.account.SealedAt(mark.Step), now) {
		s.saveAndTell()
	}
}
