package elastic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// plan is the newest step that every rank can have (package restore). The memory of a lost slot's pod does not count.
func (s *State) plan(lost func(Slot) bool) restore.Point {
	return restore.Find(s.members.Pods(lost), s.inStorage(), s.Record.Branches)
}

// reaches says whether these pods can have a step, from memory or from any that the record names.
func (s *State) reaches(p protocol.Point, pods []restore.Pod) bool {
	stored := s.inStorage()
	stored.Whole = nil
	for _, d := range slices.Concat(s.durable(), s.Record.Pinned) {
		stored.Whole = append(stored.Whole, d.Mark)
	}
	return restore.Reaches(p, pods, stored, s.Record.Branches)
}

// noPoint: nothing is to be restored.
var noPoint restore.Point

// inStorage is what is recorded of storage.
func (s *State) inStorage() restore.Stored {
	out := restore.Stored{Parts: s.Record.Copies, World: s.members.Recorded()}
	if s.Record.RestoreStep == StepUnknown { // so are those of the generations that the store lost
		out.Apart = s.Record.Generation - 1
	}
	for _, d := range s.durable() {
		if len(out.Whole) == restore.MostWhole {
			break
		}
		out.Whole = append(out.Whole, d.Mark)
	}
	return out
}

// durable are the recorded steps of which storage holds every rank's part, newest first.
func (s *State) durable() []StoredStep {
	out := []StoredStep{}
	for _, d := range []*StoredStep{s.Record.Durable, s.Record.Older} {
		if d != nil {
			out = append(out, *d)
		}
	}
	return append(out, s.Record.Kept...)
}

// recorded are the marks that the record names.
func (s *State) recorded() []protocol.Mark {
	out := []protocol.Mark{}
	for _, d := range s.durable() {
		out = append(out, d.Mark)
	}
	for _, c := range s.Record.Copies {
		if !slices.Contains(out, c.Mark) {
			out = append(out, c.Mark)
		}
	}
	return out
}

// gathered: every rank holds the newest step that can be had. It is known once gather has planned.
func (s *State) gathered() bool {
	return len(s.run.forming.fetching.Fetch) == 0 && (s.run.forming.fetching.Step > 0 || s.Record.Durable == nil)
}

// gather has every rank fetch what it lacks of the newest step that can be had, before a generation begins.
func (s *State) gather(now time.Time) {
	if s.run.forming.readyAt.IsZero() {
		s.run.forming.readyAt = now
	}
	p := s.run.forming.fetching
	if !s.run.forming.planned {
		s.forgetPast()
		if p = s.plan(members.NoneLost); p.Step == 0 {
			p = restore.Insist(s.members.Pods(members.NoneLost), s.inStorage(), s.Record.Branches)
		}
		s.run.forming.planned = true
		if s.Record.RestoreStep == StepUnknown && slices.ContainsFunc(slices.Collect(maps.Values(p.Fetch)), func(m protocol.Mark) bool { return m.Generation < s.Record.Generation }) {
			s.goBack(p.Point)
		}
	}
	if p.Point != s.run.forming.fetching.Point || !maps.Equal(p.Fetch, s.run.forming.fetching.Fetch) {
		s.emit(Broadcast{})
	}
	s.run.forming.fetching = p
	s.announceUnreadable()
	if s.run.forming.fetched && len(p.Fetch) == 0 {
		s.account.NoteFetched(s.Record.Generation, now.Sub(s.run.forming.readyAt))
	}
	s.run.forming.fetched = s.run.forming.fetched || len(p.Fetch) > 0
}

// forget drops what storage has of a past that is given up: of a step's own line all above it, whichever branch that is of.
func (s *State) forget(from protocol.Point) {
	r := &s.Record
	above := func(m protocol.Mark) bool { return m.Step > from.Step || m.Branch > from.Branch }
	s.drop(above)
	if r.RestoreStep != StepUnknown {
		return
	}
	s.dropWhole(func(m protocol.Mark) bool { // pods that go on from memory may hold another step of that number
		return m.Generation < r.Generation && restore.Reached(s.members.Pods(members.NoneLost), m.Point())
	})
}

// drop drops what the record says that storage has.
func (s *State) drop(gone func(protocol.Mark) bool) {
	s.Record.Copies = slices.DeleteFunc(slices.Clone(s.Record.Copies), func(c RankCopy) bool { return gone(c.Mark) })
	s.dropWhole(gone)
}

// dropWhole drops steps of which it has all.
func (s *State) dropWhole(gone func(protocol.Mark) bool) {
	s.setDurable(slices.DeleteFunc(s.durable(), func(d StoredStep) bool { return gone(d.Mark) }))
}

// goBack decides for a stored step of a record that lags behind: all steps that pods hold are newer, and given up. The
// record then no longer lags behind, also for the next coordinator, which finds the step in the memory of pods.
func (s *State) goBack(to protocol.Point) {
	s.Record.RestoreStep, s.Record.RestoreBranch = to.Step, to.Branch
	s.forget(to)
	s.save()
}

// forgetPast drops stored steps that the gang has since rolled back past: some rank holds only older steps than one that
// all ranks once held.
func (s *State) forgetPast() {
	r := &s.Record
	if r.RestoreStep != StepUnknown {
		return
	}
	behind := func(d *StoredStep) bool {
		return d.Generation < r.Generation && slices.ContainsFunc(s.members.Pods(members.NoneLost), func(p restore.Pod) bool {
			return slices.ContainsFunc(p.Held, func(held []protocol.Point) bool { return len(held) > 0 && restore.Last(held).Compare(d.Point()) < 0 })
		})
	}
	all := s.durable()
	for len(all) > 0 && behind(&all[0]) {
		all = all[1:]
	}
	s.setDurable(all)
}

// copying is a step on its way to storage, from all ranks.
type copying struct {
	mark protocol.Mark
	// manifest is ordered once every rank's file is there.
	manifest protocol.Manifest
	// sealedAt is when all ranks held it.
	sealedAt time.Time
}

// ordered says whether the manifest of a step on its way was ordered.
func (c *copying) ordered() bool { return c != nil && c.manifest.Step > 0 }

// preserve copies a step of all ranks to storage every so often: the newest that all hold, each rank's file
// first, then the manifest, then the record.
func (s *State) preserve(now time.Time) {
	if s.storage <= 0 || !s.members.All(func(m *members.Member) bool { return m.UsesStorage(s.Record.Generation) }) {
		return
	}
	c := s.run.copying
	switch {
	case c == nil:
		if last := s.lastDurable(); last.IsZero() || now.Sub(last) < s.storage {
			return
		}
		s.pick()
	case c.ordered():
	case s.members.All(func(m *members.Member) bool { return m.Wrote(c.mark) }):
		if s.storedRevision < max(s.durableRevision, s.pinnedRevision) {
			return // what it has removed goes by the record as it is stored: nothing that this still names
		}
		c.manifest = s.manifest(c.mark)
		s.emit(Broadcast{})
	case !s.members.All(func(m *members.Member) bool { return m.CanWrite(c.mark) }):
		s.pick() // some rank dropped the step before it could be copied
	}
}

// confirm records a step as durable once its manifest is written, also while the gang is being halted. What a
// fenced pod's generation still leaves there is not recorded.
func (s *State) confirm(now time.Time) {
	c, m := s.run.copying, s.members.At(0)
	ordered := c.ordered()
	if s.replacements.AnyFenced() {
		if ordered {
			s.run.copying = nil
			s.emit(Broadcast{})
		}
		return
	}
	mark := m.Report().Manifested
	if !m.Known() || !(ordered && mark == c.mark || c == nil && s.unrecorded(mark)) || !s.Record.Branches.Has(mark.Point()) {
		return
	}
	s.recordDurable(mark, now)
	s.Record.Copies = slices.DeleteFunc(slices.Clone(s.Record.Copies), func(o RankCopy) bool { return o.Point().Compare(mark.Point()) <= 0 })
	s.run.copying = nil
	s.save()
	s.emit(Broadcast{})
}

// recordDurable records a step as durable; agents are told once that is stored, which the next Persist does.
func (s *State) recordDurable(mark protocol.Mark, now time.Time) {
	s.setDurable(Kept(append([]StoredStep{{Mark: mark, At: now}}, s.durable()...), s.retention))
	s.pin()
	s.durableRevision, s.sealedAt = s.revision+1, s.sealedBy(mark)
}

// sealedBy is when all ranks held a step sealed, as far as this coordinator or the record knows.
func (s *State) sealedBy(mark protocol.Mark) time.Time {
	c, p := s.run.copying, s.account.Figures()
	switch {
	case c != nil && c.mark == mark:
		return c.sealedAt
	case p.SavedStep == mark.Step:
		return p.SavedAt
	}
	return time.Time{}
}

// tellGap says how long a step took from sealed to durable, once the record that names it is stored.
func (s *State) tellGap(now time.Time) {
	if s.storedRevision < s.durableRevision || s.sealedAt.IsZero() {
		return
	}
	s.emit(MadeDurable{Gap: max(0, now.Sub(s.sealedAt))})
	s.sealedAt = time.Time{}
}

// durableStored is the newest durable step that the stored record names; the zero Point: none, or it is not known to be stored yet.
func (s *State) durableStored() protocol.Point {
	if s.Record.Durable == nil || s.storedRevision < s.durableRevision {
		return protocol.Point{}
	}
	return s.Record.Durable.Point()
}

// unrecorded: the manifest of that step was ordered by a coordinator that ended before it recorded it. What another
// generation left was given up with it, and a generation makes no step of a branch after its own.
func (s *State) unrecorded(mark protocol.Mark) bool {
	d, r := s.Record.Durable, &s.Record
	return s.storage > 0 && mark.Step > 0 && mark.Generation == r.Generation && mark.Branch >= 0 && mark.Branch <= r.Branch && (d == nil || mark.Point().Compare(d.Point()) > 0)
}

func (s *State) lastDurable() time.Time {
	if s.Record.Durable != nil {
		return s.Record.Durable.At
	}
	return s.account.StartedAt()
}

// pick chooses the step that is copied next; there may be none yet.
func (s *State) pick() {
	before := s.run.copying
	s.run.copying = nil
	mark := s.markOf(s.run.commonStep)
	if d := s.Record.Durable; mark.Step > 0 && (d == nil || mark.Point().Compare(d.Point()) > 0) {
		s.run.copying = &copying{mark: mark, sealedAt: s.account.Figures().SavedAt}
	}
	if before != s.run.copying {
		s.emit(Broadcast{})
	}
}

func (s *State) manifest(mark protocol.Mark) protocol.Manifest {
	out := protocol.Manifest{Mark: mark}
	if out.Below = s.removedBelow(); out.Below.Step > 0 {
		out.Recorded = s.kept()
	}
	for i := range s.members.Len() {
		for _, k := range s.members.At(Slot(i)).Report().Rank {
			out.Ranks = append(out.Ranks, protocol.ManifestRank{Length: k.Copied.Length, Checksum: k.Copied.Checksum})
		}
	}
	return out
}

// keep records what a pod to be replaced has copied: the newest step of each rank.
func (s *State) keep(slot Slot, mark protocol.Mark) {
	base := s.baseRank(slot)
	copies := slices.Clone(s.Record.Copies)
	for _, k := range s.members.At(slot).Report().Rank {
		if k.Copied.Mark != mark {
			continue
		}
		rank := base + k.Local
		copies = slices.DeleteFunc(copies, func(c RankCopy) bool { return c.Rank == rank })
		copies = append(copies, RankCopy{Mark: mark, Rank: rank})
	}
	slices.SortFunc(copies, func(a, b RankCopy) int { return cmp.Compare(a.Rank, b.Rank) })
	s.Record.Copies = copies
}

// storedFor says whether storage has a slot's part of a step.
func (s *State) storedFor(slot Slot, step protocol.Point) bool {
	stored, base := s.inStorage(), s.baseRank(slot)
	for local := range s.members.Ranks(slot) {
		if m, ok := stored.Find(step, base+local, s.members.World(), nil); !ok || m.Generation <= stored.Apart {
			return false
		}
	}
	return true
}
