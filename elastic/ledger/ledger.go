// Package ledger records which steps of a gang are in storage and from which of them training may continue. A step becomes durable in the
// ledger once its manifest is written, or once terminating pods have copied the parts of all ranks. If training continues from an older
// step, the ledger drops the newer steps from the list. The ledger orders no removal of a step that the stored record names.
package ledger

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// StoredStep is a step in storage, and when it was complete there.
type StoredStep struct {
	protocol.Mark
	At time.Time
}

// Recorded is what outlives a coordinator.
type Recorded struct {
	// Durable is the newest step that is complete in storage, Older the one recorded before it; nil: none. Kept are steps before
	// Older that stay in storage, newest first.
	Durable, Older *StoredStep
	Kept           []StoredStep
	// Copies are parts of steps that drained pods left in storage.
	Copies []restore.Part
	// Pinned are steps that stay in storage because a user pinned them: training continues from them only on a user's request. PinWish is
	// the newest Retention.PinWish that they answer.
	Pinned  []StoredStep
	PinWish int64
	// Line is the line of training: steps on it may be restored.
	Line restore.Line
	// Launches are steps that stay in storage and from which no generation starts, newest first: the step of this launcher that ranks
	// failed to restore, then the newest steps of earlier launchers.
	Launches []StoredStep
}

// Generation is the newest generation, as far as the ledger uses it.
type Generation struct {
	Number, Branch int64
	// World is its recorded number of ranks.
	World int
	// Worlds are as in restore.Stored.
	Worlds []restore.World
	// Unknown: the store lost its record, and the step that it restored is unknown.
	Unknown bool
}

// Ledger is the ledger of one gang.
type Ledger struct {
	// every is the interval at which steps are copied to storage; 0: there is no storage.
	every     time.Duration
	retention Retention
	// steps are those whose parts of all ranks are in storage, newest first.
	steps            []StoredStep
	pinned, launches []StoredStep
	pinWish          int64
	copies           []restore.Part
	line             restore.Line
	// revision is the newest revision of the record, stored the newest in the store. The others are the first revisions with the newest
	// step, the newest copy, the requested pins, and the newest branch.
	revision, stored                                   int64
	durableSince, copiedSince, pinnedSince, branchedAt int64
	// sealedAt is when all ranks held the newest step sealed, until its record is stored; zero: unknown, or already returned.
	sealedAt time.Time
	// copying is the step being copied to storage, from all ranks of the newest generation; nil: none.
	copying *copying
	// awaits: a copy is due, and all ranks hold no step that is newer than the newest in storage.
	awaits bool
}

// copying is a step being copied to storage.
type copying struct {
	mark protocol.Mark
	// manifest is set, and ordered, once every rank's file is in storage.
	manifest protocol.Manifest
	// sealedAt is when all ranks held it.
	sealedAt time.Time
}

// maxLaunches bounds Recorded.Launches: each is a whole checkpoint of the gang.
const maxLaunches = 4

// New returns a ledger from its record, for a gang that copies steps to storage at an interval (0: never).
func New(every time.Duration, r Recorded) *Ledger {
	l := &Ledger{every: every, pinned: r.Pinned, launches: r.Launches, pinWish: r.PinWish, copies: r.Copies, line: r.Line}
	for _, d := range []*StoredStep{r.Durable, r.Older} {
		if d != nil {
			l.steps = append(l.steps, *d)
		}
	}
	l.steps = append(l.steps, r.Kept...)
	return l
}

// Record returns what must be stored; it shares nothing with the ledger.
func (l *Ledger) Record() Recorded {
	r := Recorded{
		Copies: slices.Clone(l.copies), Pinned: slices.Clone(l.pinned), PinWish: l.pinWish,
		Line: slices.Clone(l.line), Launches: slices.Clone(l.launches),
	}
	steps := slices.Clone(l.steps)
	if len(steps) > 0 {
		r.Durable = &steps[0]
	}
	if len(steps) > 1 {
		r.Older = &steps[1]
	}
	if len(steps) > 2 {
		r.Kept = slices.Clone(steps[2:])
	}
	return r
}

// NoteRevision records the number of the next stored revision.
func (l *Ledger) NoteRevision(revision int64) { l.revision = revision }

// NoteStored records that the store has a revision. If that is the first with the newest step, it returns the time from sealed to
// durable, if known.
func (l *Ledger) NoteStored(revision int64, now time.Time) (gap time.Duration, known bool) {
	l.stored = max(l.stored, revision)
	if l.stored < l.durableSince || l.sealedAt.IsZero() {
		return 0, false
	}
	gap = max(0, now.Sub(l.sealedAt))
	l.sealedAt = time.Time{}
	return gap, true
}

// Line returns the gang's line.
func (l *Ledger) Line() restore.Line { return l.line }

// LineStored reports whether the store has the present line.
func (l *Ledger) LineStored() bool { return l.stored >= l.branchedAt }

// BeginBranch begins a branch of training after a step, with the next revision. Given-up steps are no longer listed.
func (l *Ledger) BeginBranch(branch, after int64) {
	l.line = l.line.Begin(branch, after)
	l.drop(func(m protocol.Mark) bool { return !l.line.Has(m.Point()) })
	l.copying = nil
	l.branchedAt = l.revision + 1
}

// Extend moves the start of a generation's branch back to a step: no newer step is left to restore.
func (l *Ledger) Extend(branch, after int64) { l.line = l.line.Begin(branch, after) }

// BeginLaunch retains the newest step of the launcher that ended. The next launcher begins once that is stored.
func (l *Ledger) BeginLaunch() {
	if len(l.steps) > 0 {
		l.keepNewest(l.launches)
	}
	l.copying = nil
	l.branchedAt = l.revision + 1
}

// keepNewest retains the newest step, before others that are retained.
func (l *Ledger) keepNewest(others []StoredStep) {
	kept := append([]StoredStep{l.steps[0]}, others...)
	l.launches = kept[:min(len(kept), maxLaunches)]
}

// KeepGivenUp retains the newest step in storage when all steps from one on are given up, unless the present launcher, whose generations
// are above after, has a newer one there.
func (l *Ledger) KeepGivenUp(from, after int64) {
	if len(l.steps) == 0 || l.steps[0].Step < from {
		return
	}
	kept := l.launches
	if len(kept) > 0 && kept[0].Generation > after {
		if kept[0].Step >= l.steps[0].Step {
			return
		}
		kept = kept[1:]
	}
	l.keepNewest(kept)
}

// ForgetLaunches drops the kept steps of earlier launchers: the store lost their record.
func (l *Ledger) ForgetLaunches() { l.launches = nil }

// BeginGeneration drops the step that was being copied to storage.
func (l *Ledger) BeginGeneration() { l.copying, l.awaits = nil, false }

// Newest returns the newest durable step; false: none.
func (l *Ledger) Newest() (StoredStep, bool) {
	if len(l.steps) == 0 {
		return StoredStep{}, false
	}
	return l.steps[0], true
}

// StepsStored reports whether the stored record names every step and copy of the ledger.
func (l *Ledger) StepsStored() bool { return l.stored >= max(l.durableSince, l.copiedSince) }

// DurableStored returns the newest durable step in the stored record; the zero Point: none, or not known to be stored yet.
func (l *Ledger) DurableStored() protocol.Point {
	if len(l.steps) == 0 || l.stored < l.durableSince {
		return protocol.Point{}
	}
	return l.steps[0].Point()
}

// Stored returns the recorded content of storage, in the form of package restore.
func (l *Ledger) Stored(g Generation) restore.Stored {
	out := restore.Stored{Parts: l.copies, World: g.World, Worlds: g.Worlds}
	if g.Unknown { // includes the generations that the store lost
		out.Apart = g.Number - 1
	}
	for _, d := range l.steps[:min(len(l.steps), restore.MostWhole)] {
		out.Whole = append(out.Whole, d.Mark)
	}
	return out
}

// Plan returns the newest step that is available to every rank (package restore). insist: steps that failed to be read count as well.
func (l *Ledger) Plan(pods []restore.Pod, g Generation, insist bool) restore.Point {
	if insist {
		return restore.Insist(pods, l.Stored(g), l.line)
	}
	return restore.Find(pods, l.Stored(g), l.line)
}

// Reaches reports whether a step is available to all pods, from memory or from the recorded storage.
func (l *Ledger) Reaches(p protocol.Point, pods []restore.Pod, g Generation) bool {
	stored := l.Stored(g)
	stored.Whole = nil
	for _, d := range slices.Concat(l.steps, l.pinned) {
		stored.Whole = append(stored.Whole, d.Mark)
	}
	return restore.Reaches(p, pods, stored, l.line)
}

// HasPart reports whether storage has a slot's parts of a step. base is the first of the slot's ranks, world the gang's number of ranks.
func (l *Ledger) HasPart(step protocol.Point, g Generation, base, ranks, world int) bool {
	stored := l.Stored(g)
	for local := range ranks {
		if m, ok := stored.Find(step, base+local, world, nil); !ok || m.Generation <= stored.Apart {
			return false
		}
	}
	return true
}

// Forget drops stored steps of a history that is given up: all above a step, on its own line and on any branch. If the generation is
// unknown, pods that continue from memory may hold a different step with the same number.
func (l *Ledger) Forget(from protocol.Point, pods []restore.Pod, g Generation) {
	l.drop(func(m protocol.Mark) bool { return m.Step > from.Step || m.Branch > from.Branch })
	if g.Unknown {
		l.dropWhole(func(m protocol.Mark) bool { return m.Generation < g.Number && restore.Reached(pods, m.Point()) })
	}
}

// ForgetPast drops given-up steps from an outdated record: if ranks hold no step as new as one that all once held, training was rolled back
// past that since.
func (l *Ledger) ForgetPast(pods []restore.Pod, g Generation) {
	behind := func(d StoredStep) bool {
		return d.Generation < g.Number && slices.ContainsFunc(pods, func(p restore.Pod) bool {
			return slices.ContainsFunc(
				p.Held,
				func(held []protocol.Point) bool { return len(held) > 0 && restore.Last(held).Compare(d.Point()) < 0 },
			)
		})
	}
	for g.Unknown && len(l.steps) > 0 && behind(l.steps[0]) {
		l.steps = l.steps[1:]
	}
}

// ForgetCopies drops the copies of drained pods.
func (l *Ledger) ForgetCopies() { l.copies = nil }

// drop drops steps and copies from the record.
func (l *Ledger) drop(gone func(protocol.Mark) bool) {
	l.copies = slices.DeleteFunc(slices.Clone(l.copies), func(c restore.Part) bool { return gone(c.Mark) })
	l.dropWhole(gone)
}

// dropWhole drops complete steps from the record.
func (l *Ledger) dropWhole(gone func(protocol.Mark) bool) {
	l.steps = slices.DeleteFunc(slices.Clone(l.steps), func(d StoredStep) bool { return gone(d.Mark) })
}

// Unshelve makes a step that is only pinned available to training again, at a user's request.
func (l *Ledger) Unshelve(to protocol.Point) {
	for _, d := range l.pinned {
		if d.Point() == to && !slices.ContainsFunc(l.steps, func(o StoredStep) bool { return o.Mark == d.Mark }) {
			l.steps = append([]StoredStep{d}, l.steps...) // all newer steps were given up
			return
		}
	}
}

// record adds a durable step. DurableStored returns it once the next revision is stored. sealedAt is when all ranks held the step; zero:
// unknown.
func (l *Ledger) record(mark protocol.Mark, sealedAt, now time.Time) {
	if c := l.copying; c != nil && c.mark == mark {
		sealedAt = c.sealedAt
	}
	l.steps = Kept(append([]StoredStep{{Mark: mark, At: now}}, l.steps...), l.retention)
	l.pin()
	l.durableSince, l.sealedAt, l.copying = l.revision+1, sealedAt, nil
}

// Candidate is the newest step that all ranks hold, which may be copied to storage.
type Candidate struct {
	Mark     protocol.Mark
	SealedAt time.Time
}

// TakeNext copies a step of all ranks to storage at the interval: the newest that all hold, first each rank's file, then the manifest, then
// the record. began is when the gang started. TakeNext reports whether directives change.
func (l *Ledger) TakeNext(ms *members.Members, newest func() Candidate, began, now time.Time) bool {
	switch c := l.copying; {
	case c == nil:
		last := began
		if len(l.steps) > 0 {
			last = l.steps[0].At
		}
		awaited, due := l.awaits, !last.IsZero() && now.Sub(last) >= l.every
		taken := due && l.take(newest())
		l.awaits = due && !taken
		return taken || l.awaits != awaited
	case c.manifest.Step > 0:
	case ms.All(func(m *members.Member) bool { return m.Wrote(c.mark) }):
		if l.stored < max(l.durableSince, l.pinnedSince) {
			return false // a manifest's removals follow the stored record, which must name the same steps
		}
		c.manifest = l.manifest(c.mark, ms)
		return true
	case !ms.All(func(m *members.Member) bool { return m.CanWrite(c.mark) }):
		return l.take(newest()) // some rank dropped the previous step before it was copied
	}
	return false
}

// take sets the step to copy next; false: there is none.
func (l *Ledger) take(next Candidate) bool {
	had := l.copying != nil
	l.copying = nil
	if newest, some := l.Newest(); next.Mark.Step > 0 && (!some || next.Mark.Point().Compare(newest.Point()) > 0) {
		l.copying = &copying{mark: next.Mark, sealedAt: next.SealedAt}
	}
	return had || l.copying != nil
}

// Copies reports whether steps are copied to storage.
func (l *Ledger) Copies() bool { return l.every > 0 }

// Awaits reports whether the next step that all ranks hold will be copied to storage.
func (l *Ledger) Awaits() bool { return l.awaits && l.copying == nil }

// Copying returns the step being copied to storage, and its manifest once ordered; the zero Mark: none.
func (l *Ledger) Copying() (protocol.Mark, protocol.Manifest) {
	if l.copying == nil {
		return protocol.Mark{}, protocol.Manifest{}
	}
	return l.copying.mark, l.copying.manifest
}

// DropOrder withdraws an ordered manifest; it reports whether there was one.
func (l *Ledger) DropOrder() bool {
	ordered := l.copying != nil && l.copying.manifest.Step > 0
	if ordered {
		l.copying = nil
	}
	return ordered
}

// RecordManifest records a step as durable once its manifest, ordered by this or an earlier coordinator, is written; false: it was not.
func (l *Ledger) RecordManifest(mark protocol.Mark, g Generation, sealedAt, now time.Time) bool {
	c := l.copying
	ordered := c != nil && c.manifest.Step > 0 && mark == c.mark
	if !(ordered || c == nil && l.unrecorded(mark, g)) || !l.line.Has(mark.Point()) {
		return false
	}
	l.record(mark, sealedAt, now)
	l.copies = slices.DeleteFunc(slices.Clone(l.copies), func(o restore.Part) bool { return o.Point().Compare(mark.Point()) <= 0 })
	return true
}

// unrecorded reports whether an earlier coordinator ordered the manifest of that step and ended before it recorded the step. Steps of other
// generations were given up with them, and a generation makes no step of a later branch.
func (l *Ledger) unrecorded(mark protocol.Mark, g Generation) bool {
	newest, some := l.Newest()
	return l.every > 0 && mark.Step > 0 && mark.Generation == g.Number && mark.Branch >= 0 && mark.Branch <= g.Branch &&
		(!some || mark.Point().Compare(newest.Point()) > 0)
}

func (l *Ledger) manifest(mark protocol.Mark, ms *members.Members) protocol.Manifest {
	out := protocol.Manifest{Mark: mark}
	if out.Below = l.removedBelow(); out.Below.Step > 0 {
		out.Recorded = l.spared()
	}
	for _, m := range ms.Each {
		for _, k := range m.Report().Rank {
			out.Ranks = append(out.Ranks, protocol.ManifestRank{Length: k.Copied.Length, Checksum: k.Copied.Checksum})
		}
	}
	return out
}

// KeepCopy records what a pod to be replaced has copied: the newest step of each rank; base is its first rank.
func (l *Ledger) KeepCopy(mark protocol.Mark, base int, ranks []protocol.Rank) {
	copies := slices.Clone(l.copies)
	for _, k := range ranks {
		if k.Copied.Mark != mark {
			continue
		}
		rank := base + k.Local
		copies = slices.DeleteFunc(copies, func(c restore.Part) bool { return c.Rank == rank })
		copies = append(copies, restore.Part{Mark: mark, Rank: rank})
	}
	slices.SortFunc(copies, func(a, b restore.Part) int { return cmp.Compare(a.Rank, b.Rank) })
	l.copies, l.copiedSince = copies, l.revision+1
}

// TakeComplete records a step as durable once the parts of all ranks are in storage; false: some are missing.
func (l *Ledger) TakeComplete(mark protocol.Mark, world int, sealedAt, now time.Time) bool {
	n := 0
	for _, c := range l.copies {
		if c.Mark == mark {
			n++
		}
	}
	if n == 0 || n < world {
		return false
	}
	l.record(mark, sealedAt, now)
	l.copies = nil // copies under way are older, too
	return true
}
