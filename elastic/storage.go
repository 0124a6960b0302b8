package elastic

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// plan is how a step comes into the memory of every rank: what each slot has to fetch from storage first.
type plan struct {
	step  int64
	fetch map[Slot]Mark
}

// plan finds the newest step that every rank holds, in memory or in recorded storage. The memory of a lost
// slot's pod does not count; the pod that takes its place is expected to read storage.
func (s *State) plan(lost func(Slot) bool) plan {
	for _, step := range s.candidates(lost) {
		if fetch, ok := s.sources(step, lost, false); ok {
			return plan{step, fetch}
		}
	}
	return plan{}
}

// durable are the recorded steps of which storage holds every rank's part, newest first.
func (s *State) durable() []StoredStep {
	out := []StoredStep{}
	for _, d := range []*StoredStep{s.Record.Durable, s.Record.Older} {
		if d != nil {
			out = append(out, *d)
		}
	}
	return out
}

// recorded are the marks that the record names.
func (s *State) recorded() []Mark {
	out := []Mark{}
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

// candidates are all steps that anybody holds, newest first.
func (s *State) candidates(lost func(Slot) bool) []int64 {
	steps := []int64{}
	add := func(step int64) { // ranks hold few steps, and mostly the same
		if step > 0 && !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
	}
	for i := range s.slots {
		if lost(Slot(i)) {
			continue
		}
		for j := range s.slots[i].report.Rank {
			for _, step := range s.slots[i].report.Rank[j].Sealed {
				add(step)
			}
		}
	}
	for _, d := range s.durable() {
		add(d.Step)
	}
	for _, c := range s.Record.Copies {
		add(c.Step)
	}
	slices.SortFunc(steps, func(a, b int64) int { return cmp.Compare(b, a) })
	return steps
}

// sources says which slots lack a step and where each finds it; ok is false where one finds it nowhere. To insist
// means to ask also for what could not be read.
func (s *State) sources(step int64, lost func(Slot) bool, insist bool) (fetch map[Slot]Mark, ok bool) {
	fetch = map[Slot]Mark{}
	base := 0
	for i := range s.slots {
		slot, m := Slot(i), &s.slots[i]
		held, failed := inventory(&m.report), m.failed
		if insist {
			failed = nil
		}
		want := Mark{}
		for local := range s.ranks(slot) {
			if !lost(slot) && local < len(held) && holds(held[local], step) {
				continue
			}
			mark, ok := s.inStorage(step, base+local, failed)
			if !ok || want != (Mark{}) && want != mark {
				return nil, false
			}
			want = mark
		}
		base += s.ranks(slot)
		if want == (Mark{}) {
			continue
		}
		// A pod whose storage does not answer is waited for: to go on from an older step would lose what is safe.
		if !lost(slot) && m.report.Protocol < 2 {
			return nil, false
		}
		fetch[slot] = want
	}
	return fetch, base > 0
}

// ranks is how many ranks a slot has; a slot whose pod is not known has as many as the others.
func (s *State) ranks(slot Slot) int {
	if n := s.slots[slot].report.Ranks; n > 0 {
		return n
	}
	for i := range s.slots {
		if n := s.slots[i].report.Ranks; n > 0 {
			return n
		}
	}
	return s.Record.Progress.Ranks / len(s.slots)
}

// world is how many ranks all slots have.
func (s *State) world() int {
	return s.rank().world
}

// inStorage says where storage has a rank's part of a step, as far as that is recorded and was not found
// to be of no use. What was stored by a world of another size is of none.
func (s *State) inStorage(step int64, rank int, failed []Mark) (Mark, bool) {
	world := s.world()
	if n := s.Record.Progress.Ranks; n > 0 && n != world {
		return Mark{}, false
	}
	for _, d := range s.durable() {
		if d.Step == step && !slices.Contains(failed, d.Mark) {
			return d.Mark, true
		}
	}
	for _, c := range s.Record.Copies {
		if c.Rank == rank && c.Step == step && !slices.Contains(failed, c.Mark) {
			return c.Mark, true
		}
	}
	return Mark{}, false
}

// nobody is lost.
func nobody(Slot) bool { return false }

// gathered: every rank holds the newest step that can be had. It is known once gather has planned.
func (s *State) gathered() bool {
	return len(s.run.forming.fetching.fetch) == 0 && (s.run.forming.fetching.step > 0 || s.Record.Durable == nil)
}

// gather has every rank fetch what it lacks of the newest step that can be had, before a generation begins.
func (s *State) gather(now time.Time) {
	if s.run.forming.readyAt.IsZero() {
		s.run.forming.readyAt = now
	}
	p := s.run.forming.fetching
	if !s.run.forming.planned {
		if p = s.plan(nobody); p.step == 0 {
			p = s.insist()
		}
		s.run.forming.planned = true
	}
	if p.step != s.run.forming.fetching.step || !maps.Equal(p.fetch, s.run.forming.fetching.fetch) {
		s.emit(Direct{})
	}
	s.run.forming.fetching = p
	s.tellUnreadable()
	if rec := s.openRecovery(); rec != nil && s.run.forming.fetched && len(p.fetch) == 0 {
		rec.Fetch = max(0, now.Sub(s.run.forming.readyAt))
	}
	s.run.forming.fetched = s.run.forming.fetched || len(p.fetch) > 0
}

// insist is what is asked for where no step can be had: the newest of which every part is recorded or held. To
// begin anew over it would throw away what people stored, so its parts are asked for again and again.
func (s *State) insist() plan {
	for _, step := range s.candidates(nobody) {
		if fetch, ok := s.sources(step, nobody, true); ok {
			return plan{step, fetch}
		}
	}
	return plan{}
}

// forget drops what storage has of a past that is given up.
func (s *State) forget(restore int64) {
	r := &s.Record
	if r.Older != nil && r.Older.Step > restore {
		r.Older = nil
	}
	if r.Durable != nil && r.Durable.Step > restore {
		r.Durable, r.Older = r.Older, nil
	}
	r.Copies = slices.DeleteFunc(slices.Clone(r.Copies), func(c RankCopy) bool { return c.Step > restore })
}

// copying is a step on its way to storage, from all ranks.
type copying struct {
	mark     Mark
	manifest *Manifest
}

// preserve copies a step of all ranks to storage every so often: the newest that all hold, each rank's file
// first, then the manifest, then the record.
func (s *State) preserve(now time.Time) {
	if s.storage <= 0 || !s.all(s.canCopy) {
		return
	}
	c := s.run.copying
	switch {
	case c == nil:
		if last := s.lastDurable(); last.IsZero() || now.Sub(last) < s.storage {
			return
		}
		s.pick()
	case c.manifest != nil:
	case s.all(func(m *member) bool { return wrote(m, c.mark) }):
		c.manifest = s.manifest(c.mark)
		s.emit(Direct{})
	case !s.all(func(m *member) bool { return canWrite(m, c.mark) }):
		s.pick() // some rank dropped the step before it could be copied
	}
}

// confirm records a step as durable once its manifest is written, also while the gang is being halted. What a
// fenced pod's generation still leaves there is not recorded.
func (s *State) confirm(now time.Time) {
	c, m := s.run.copying, &s.slots[0]
	ordered := c != nil && c.manifest != nil
	if slices.ContainsFunc(s.Record.Doomed, func(d Doom) bool { return s.Fenced(d.Pod) }) {
		if ordered {
			s.run.copying = nil
			s.emit(Direct{})
		}
		return
	}
	mark := m.report.Manifested
	if !m.known || !(ordered && mark == c.mark || c == nil && s.unrecorded(mark)) {
		return
	}
	s.Record.Durable, s.Record.Older = &StoredStep{Mark: mark, At: now}, s.Record.Durable
	s.Record.Copies = slices.DeleteFunc(slices.Clone(s.Record.Copies), func(o RankCopy) bool { return o.Step <= mark.Step })
	s.run.copying = nil
	s.save()
	s.emit(Direct{})
}

// unrecorded: the manifest of that step was ordered by a coordinator that ended before it recorded it. What another
// generation left was given up with it.
func (s *State) unrecorded(mark Mark) bool {
	d := s.Record.Durable
	return s.storage > 0 && mark.Step > 0 && mark.Generation == s.Record.Generation && (d == nil || mark.Step > d.Step)
}

// canCopy: the pod runs the newest generation and can write to storage.
func (s *State) canCopy(m *member) bool {
	return m.attached && s.current(m) && ran(m.report.State) && m.report.Protocol >= 2 && m.report.Storage && m.report.Ranks > 0
}

func (s *State) lastDurable() time.Time {
	if s.Record.Durable != nil {
		return s.Record.Durable.At
	}
	return s.Record.StartedAt
}

// pick chooses the step that is copied next; there may be none yet.
func (s *State) pick() {
	before := s.run.copying
	s.run.copying = nil
	if d := s.Record.Durable; s.run.common > 0 && (d == nil || s.run.common > d.Step) {
		s.run.copying = &copying{mark: Mark{s.run.common, s.Record.Generation}}
	}
	if before != s.run.copying {
		s.emit(Direct{})
	}
}

func (s *State) manifest(mark Mark) *Manifest {
	out := &Manifest{Mark: mark, Recorded: s.recorded()}
	for i := range s.slots {
		for _, k := range s.slots[i].report.Rank {
			out.Ranks = append(out.Ranks, ManifestRank{k.Copied.Length, k.Copied.Checksum})
		}
	}
	return out
}

// wrote: every rank of the pod has copied that very step.
func wrote(m *member, mark Mark) bool {
	return len(m.report.Rank) == m.report.Ranks && !slices.ContainsFunc(m.report.Rank, func(k Rank) bool { return k.Copied.Mark != mark })
}

// canWrite: every rank of the pod has copied that step or still holds it.
func canWrite(m *member, mark Mark) bool {
	return !slices.ContainsFunc(m.report.Rank, func(k Rank) bool { return k.Copied.Mark != mark && !holds(k.Sealed, mark.Step) })
}

// keep records what a doomed pod has copied: the newest step of each rank.
func (s *State) keep(slot Slot, mark Mark) {
	base := s.baseRank(slot)
	copies := slices.Clone(s.Record.Copies)
	for _, k := range s.slots[slot].report.Rank {
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

// safe says whether storage has a slot's part of a step.
func (s *State) safe(slot Slot, step int64) bool {
	base := s.baseRank(slot)
	for local := range s.ranks(slot) {
		if _, ok := s.inStorage(step, base+local, nil); !ok {
			return false
		}
	}
	return true
}
