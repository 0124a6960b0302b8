// Package ledger keeps what lies in storage and what of it training may go on from. It promises: it names no step as whole before
// every rank's part and the manifest are there; what is given up is named no more; and it has nothing removed that the stored record names.
package ledger

import (
	"cmp"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// StoredStep is a step in storage, and when it was whole there.
type StoredStep struct {
	protocol.Mark
	At time.Time
}

// Recorded is what outlives a coordinator.
type Recorded struct {
	// Durable is the newest step that lies whole in storage, Older the one recorded before it; nil: none. Kept are steps before Older that
	// stay in storage, newest first.
	Durable, Older *StoredStep
	Kept           []StoredStep
	// Copies are parts of steps that drained pods left there.
	Copies []restore.Part
	// Pinned are steps that stay in storage because people said so: training goes on from them only where people ask for it. PinWish is
	// the newest Retention.PinWish that they answer.
	Pinned  []StoredStep
	PinWish int64
	// Line is the line of training: what is on it may be restored.
	Line restore.Line
	// Launches are the newest steps of launchers before the gang's, and first of all that of its own which ranks failed to restore, newest
	// first: they stay in storage, and no generation begins from them.
	Launches []StoredStep
}

// Generation is what the ledger receives about the newest generation.
type Generation struct {
	Number, Branch int64
	// World is how many ranks it has, as is recorded.
	World int
	// Unknown: the store lost its record, and it is not known what it restored.
	Unknown bool
}

// Ledger is that of one gang.
type Ledger struct {
	// every is how often steps are copied to storage; 0: there is none.
	every     time.Duration
	retention Retention
	// steps are those of which storage holds every rank's part, newest first.
	steps            []StoredStep
	pinned, launches []StoredStep
	pinWish          int64
	copies           []restore.Part
	line             restore.Line
	// revision is the newest revision of the record, stored the newest that the store has. The others are the first revisions that have
	// the newest step, the newest copy, the pins that people ask for, and the newest branch.
	revision, stored                                   int64
	durableSince, copiedSince, pinnedSince, branchedAt int64
	// sealedAt is when all ranks held the newest step sealed, until its record is stored; zero: that is unknown, or was returned.
	sealedAt time.Time
	// copying is the step on its way to storage, from all ranks of the newest generation; nil: none is.
	copying *copying
}

// copying is a step on its way to storage.
type copying struct {
	mark protocol.Mark
	// manifest is ordered once every rank's file is there.
	manifest protocol.Manifest
	// sealedAt is when all ranks held it.
	sealedAt time.Time
}

// maxLaunches bounds Recorded.Launches: each is a whole checkpoint of the gang.
const maxLaunches = 4

// New returns the ledger as it is recorded, of a gang that copies steps to storage so often (0: never).
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

// Record is what is to be stored; it shares nothing with the ledger.
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

// NoteRevision takes note that the record is stored again, as this revision.
func (l *Ledger) NoteRevision(revision int64) { l.revision = revision }

// NoteStored takes note that the store has a revision. Where that is the first with the newest step, it returns how long the step took from
// sealed to durable, if that is known.
func (l *Ledger) NoteStored(revision int64, now time.Time) (gap time.Duration, known bool) {
	l.stored = max(l.stored, revision)
	if l.stored < l.durableSince || l.sealedAt.IsZero() {
		return 0, false
	}
	gap = max(0, now.Sub(l.sealedAt))
	l.sealedAt = time.Time{}
	return gap, true
}

// Line is the gang's line of training.
func (l *Ledger) Line() restore.Line { return l.line }

// LineStored says whether the store has the line as it is.
func (l *Ledger) LineStored() bool { return l.stored >= l.branchedAt }

// BeginBranch begins a branch of training after a step, which the next revision has: what it gives up is named no more.
func (l *Ledger) BeginBranch(branch, after int64) {
	l.line = l.line.Begin(branch, after)
	l.drop(func(m protocol.Mark) bool { return !l.line.Has(m.Point()) })
	l.copying = nil
	l.branchedAt = l.revision + 1
}

// Extend has a branch that a generation is of begin after a step: because nothing newer is left, it goes back behind where that began.
func (l *Ledger) Extend(branch, after int64) { l.line = l.line.Begin(branch, after) }

// BeginLaunch keeps the newest step of the launcher that is over. The next one begins once that is stored.
func (l *Ledger) BeginLaunch() {
	if len(l.steps) > 0 {
		l.keepNewest(l.launches)
	}
	l.copying = nil
	l.branchedAt = l.revision + 1
}

// keepNewest has the newest step stay before others that stay.
func (l *Ledger) keepNewest(others []StoredStep) {
	kept := append([]StoredStep{l.steps[0]}, others...)
	l.launches = kept[:min(len(kept), maxLaunches)]
}

// KeepGivenUp has the newest step stay in storage if it is given up with all from a step on, unless the launcher, which is that of all
// generations after one, has a newer one there.
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

// ForgetLaunches drops what is kept of launchers before: the store lost which these were.
func (l *Ledger) ForgetLaunches() { l.launches = nil }

// BeginGeneration forgets what was on its way to storage.
func (l *Ledger) BeginGeneration() { l.copying = nil }

// Newest is the newest durable step; false: none is recorded.
func (l *Ledger) Newest() (StoredStep, bool) {
	if len(l.steps) == 0 {
		return StoredStep{}, false
	}
	return l.steps[0], true
}

// StepsStored says whether the stored record names every step and copy that the ledger names.
func (l *Ledger) StepsStored() bool { return l.stored >= max(l.durableSince, l.copiedSince) }

// DurableStored is the newest durable step that the stored record names; the zero Point: none, or it is not known to be stored yet.
func (l *Ledger) DurableStored() protocol.Point {
	if len(l.steps) == 0 || l.stored < l.durableSince {
		return protocol.Point{}
	}
	return l.steps[0].Point()
}

// Stored is what is recorded of storage, as package restore asks for it.
func (l *Ledger) Stored(g Generation) restore.Stored {
	out := restore.Stored{Parts: l.copies, World: g.World}
	if g.Unknown { // so are those of the generations that the store lost
		out.Apart = g.Number - 1
	}
	for _, d := range l.steps[:min(len(l.steps), restore.MostWhole)] {
		out.Whole = append(out.Whole, d.Mark)
	}
	return out
}

// Plan is the newest step that every rank can have (package restore). insist: what could not be read counts as well.
func (l *Ledger) Plan(pods []restore.Pod, g Generation, insist bool) restore.Point {
	if insist {
		return restore.Insist(pods, l.Stored(g), l.line)
	}
	return restore.Find(pods, l.Stored(g), l.line)
}

// Reaches says whether pods can have a step, from memory or from any that the record names.
func (l *Ledger) Reaches(p protocol.Point, pods []restore.Pod, g Generation) bool {
	stored := l.Stored(g)
	stored.Whole = nil
	for _, d := range slices.Concat(l.steps, l.pinned) {
		stored.Whole = append(stored.Whole, d.Mark)
	}
	return restore.Reaches(p, pods, stored, l.line)
}

// HasPart says whether storage has a step's parts of ranks from base on, of a gang of so many ranks.
func (l *Ledger) HasPart(step protocol.Point, g Generation, base, ranks, world int) bool {
	stored := l.Stored(g)
	for local := range ranks {
		if m, ok := stored.Find(step, base+local, world, nil); !ok || m.Generation <= stored.Apart {
			return false
		}
	}
	return true
}

// Forget drops what storage has of a past that is given up: of a step's own line all above it, whichever branch that is of. Where
// the generation is not known, pods that go on from memory may hold another step of the same number.
func (l *Ledger) Forget(from protocol.Point, pods []restore.Pod, g Generation) {
	l.drop(func(m protocol.Mark) bool { return m.Step > from.Step || m.Branch > from.Branch })
	if g.Unknown {
		l.dropWhole(func(m protocol.Mark) bool { return m.Generation < g.Number && restore.Reached(pods, m.Point()) })
	}
}

// ForgetPast drops what a record that lags behind has of a past that is given up: ranks that hold nothing as new as a step which all once
// had were taken back behind it since.
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

// ForgetCopies drops what drained pods left.
func (l *Ledger) ForgetCopies() { l.copies = nil }

// drop drops what the record says that storage has.
func (l *Ledger) drop(gone func(protocol.Mark) bool) {
	l.copies = slices.DeleteFunc(slices.Clone(l.copies), func(c restore.Part) bool { return gone(c.Mark) })
	l.dropWhole(gone)
}

// dropWhole drops steps of which it has all.
func (l *Ledger) dropWhole(gone func(protocol.Mark) bool) {
	l.steps = slices.DeleteFunc(slices.Clone(l.steps), func(d StoredStep) bool { return gone(d.Mark) })
}

// Unshelve has a step that is only pinned serve as those do that training goes on from: people ask for it.
func (l *Ledger) Unshelve(to protocol.Point) {
	for _, d := range l.pinned {
		if d.Point() == to && !slices.ContainsFunc(l.steps, func(o StoredStep) bool { return o.Mark == d.Mark }) {
			l.steps = append([]StoredStep{d}, l.steps...) // what is newer was given up
			return
		}
	}
}

// record names a step as durable. DurableStored returns it once that is stored, which the next revision does. sealedAt is when all ranks
// held the step; zero: that is not known.
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

// TakeNext copies a step of all ranks to storage every so often: the newest that all hold, each rank's file first, then the manifest,
// then the record. began is when the gang did. It reports whether directives change.
func (l *Ledger) TakeNext(ms *members.Members, newest func() Candidate, began, now time.Time) bool {
	switch c := l.copying; {
	case c == nil:
		last := began
		if len(l.steps) > 0 {
			last = l.steps[0].At
		}
		if last.IsZero() || now.Sub(last) < l.every {
			return false
		}
		return l.take(newest())
	case c.manifest.Step > 0:
	case ms.All(func(m *members.Member) bool { return m.Wrote(c.mark) }):
		if l.stored < max(l.durableSince, l.pinnedSince) {
			return false // what it has removed goes by the record as it is stored: nothing that this still names
		}
		c.manifest = l.manifest(c.mark, ms)
		return true
	case !ms.All(func(m *members.Member) bool { return m.CanWrite(c.mark) }):
		return l.take(newest()) // some rank dropped the step before it could be copied
	}
	return false
}

// take chooses the step that is copied next; there may be none yet.
func (l *Ledger) take(next Candidate) bool {
	had := l.copying != nil
	l.copying = nil
	if newest, some := l.Newest(); next.Mark.Step > 0 && (!some || next.Mark.Point().Compare(newest.Point()) > 0) {
		l.copying = &copying{mark: next.Mark, sealedAt: next.SealedAt}
	}
	return had || l.copying != nil
}

// Copies says whether steps are copied to storage.
func (l *Ledger) Copies() bool { return l.every > 0 }

// Copying is the step on its way to storage, and its manifest once that is ordered; the zero Mark: none is.
func (l *Ledger) Copying() (protocol.Mark, protocol.Manifest) {
	if l.copying == nil {
		return protocol.Mark{}, protocol.Manifest{}
	}
	return l.copying.mark, l.copying.manifest
}

// DropOrder has an ordered manifest count no more; it reports whether one was.
func (l *Ledger) DropOrder() bool {
	ordered := l.copying != nil && l.copying.manifest.Step > 0
	if ordered {
		l.copying = nil
	}
	return ordered
}

// RecordManifest records a step as durable once its manifest is written, as ordered here or by a coordinator that ended before it recorded
// that; false: it was not.
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

// unrecorded: the manifest of that step was ordered by a coordinator that ended before it recorded it. What another
// generation left was given up with it, and a generation makes no step of a branch after its own.
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
	for i := range ms.Len() {
		for _, k := range ms.At(members.Slot(i)).Report().Rank {
			out.Ranks = append(out.Ranks, protocol.ManifestRank{Length: k.Copied.Length, Checksum: k.Copied.Checksum})
		}
	}
	return out
}

// KeepCopy records what a pod to be replaced has copied, the newest step of each rank; base is the first of them.
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

// TakeComplete records a step as durable once the copy of each of so many ranks is in storage; false: it is not.
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
	l.copies = nil // what was on its way is older, too
	return true
}
