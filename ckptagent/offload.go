package ckptagent

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// barrierTimeout is how long ranks stay at the barrier while the coordinator is unreachable.
	barrierTimeout = 10 * time.Second
	// fetchRetry is the delay after a failed fetch: the coordinator orders it again only if no other step can replace it.
	fetchRetry = 30 * time.Second
)

// Copied reports that a rank's step is complete and synced in storage.
type Copied struct {
	Local int
	Copy  protocol.Copied
	// Took is the time that the copy took.
	Took time.Duration
}

// ManifestWritten answers WriteManifest.
type ManifestWritten struct{ Mark protocol.Mark }

// Fetched answers Fetch: the step is sealed in every local rank's arena, or is unavailable. Sealed lists what each rank now holds.
type Fetched struct {
	Mark   protocol.Mark
	Failed bool
	Sealed [][]protocol.Point
}

// SetBarrier writes the barrier step into the arenas: ranks stay in their first save from that step on; 0: none stays.
type SetBarrier struct{ Step int64 }

// CopyStep copies a step of every local rank to storage; answered by Copied for each. It replaces the previous copy; the zero Mark cancels
// it. The slots are pinned before any later effect, so that new levels in the same directive do not free them.
type CopyStep struct {
	Mark     protocol.Mark
	BaseRank int
	World    int
}

// AwaitCopy announces that CopyStep will follow for the next copy that a rank announces, of a step at or above From. So the adapter may
// write its data while it is sealed. From 0: none is expected, and what was written without an order is removed.
type AwaitCopy struct {
	From, Generation int64
	BaseRank, World  int
}

// WriteManifest writes a manifest and retries until it succeeds; ManifestWritten answers. Then steps that are older than all
// recorded ones are removed. The zero Mark cancels the previous one.
type WriteManifest struct{ Manifest protocol.Manifest }

// Fetch fetches a step from storage into the arena of every local rank that lacks it; Fetched answers. The zero Mark
// ends the previous fetch.
type Fetch struct {
	Mark     protocol.Mark
	BaseRank int
}

func (SetBarrier) effect()    {}
func (CopyStep) effect()      {}
func (AwaitCopy) effect()     {}
func (WriteManifest) effect() {}
func (Fetch) effect()         {}

// barrierWanted returns the gang's barrier step; 0 if the coordinator is unreachable and so could not lift it.
func (s State) barrierWanted(now time.Time) int64 {
	switch {
	case s.Clean:
		return 0 // the next generation begins without a barrier
	case s.Ending:
		return s.BarrierStep
	case s.disconnectedFor(now) >= barrierTimeout:
		return 0
	case s.directiveIsCurrent():
		return s.Want.BarrierStep
	}
	return s.BarrierStep
}

// setBarrier changes the barrier in the arenas, which may be closed while no rank runs.
func (m *machine) setBarrier(step int64) {
	ordered := step == m.s.BarrierStep || m.s.Clean
	m.s.BarrierStep = step
	if !ordered {
		m.emit(SetBarrier{Step: step})
	}
}

// copyWanted returns the step to copy: the ordered one, from when every local rank holds it until it is copied.
func (s State) copyWanted() protocol.Mark {
	if !s.directiveIsCurrent() {
		return s.Copying // a copy under way continues until a directive says otherwise
	}
	mark := s.Want.Copy
	settled := !s.Clean || s.Inventoried
	switch {
	case mark.Step == 0 || mark.Generation != s.Run.Number:
	case s.every(func(r Rank) bool { return r.Copied.Mark == mark }):
	case mark != s.Copying && !(settled && s.every(func(r Rank) bool { return r.holds(mark.Step) })):
	default:
		return mark
	}
	return protocol.Mark{}
}

func (m *machine) copy(mark protocol.Mark) {
	if mark != m.s.Copying {
		m.s.Copying = mark
		m.emit(CopyStep{Mark: mark, BaseRank: m.s.Run.BaseRank, World: m.s.Run.WorldSize})
	}
}

// nextCopy returns the copy that is expected.
func (s State) nextCopy() AwaitCopy {
	switch {
	case s.Clean || !s.Storage:
		return AwaitCopy{}
	case !s.directiveIsCurrent():
		return s.Awaiting
	case s.Want.CopyNext == 0:
		return AwaitCopy{}
	}
	return AwaitCopy{From: s.Want.CopyNext, Generation: s.Run.Number, BaseRank: s.Run.BaseRank, World: s.Run.WorldSize}
}

func (m *machine) awaitCopy(next AwaitCopy) {
	if next != m.s.Awaiting {
		m.s.Awaiting = next
		m.emit(next)
	}
}

// manifestWanted returns the manifest that is still to be written.
func (s State) manifestWanted() protocol.Manifest {
	want := s.Want.Manifest
	switch {
	case !s.directiveIsCurrent():
		return protocol.Manifest{Mark: s.Manifesting}
	case want.Mark.Step == 0 || want.Mark == s.Manifested || len(want.Ranks) == 0:
		return protocol.Manifest{}
	}
	return want
}

func (m *machine) writeManifest(want protocol.Manifest) {
	if want.Mark != m.s.Manifesting {
		m.s.Manifesting = want.Mark
		m.emit(WriteManifest{want})
	}
}

// fetchWanted returns the step to fetch while no generation runs, and the first of its ranks for this pod: from the directive, else from
// the last generation that ran here.
func (s State) fetchWanted(now time.Time) (mark protocol.Mark, base int) {
	mark = s.Want.Fetch
	switch {
	case !s.directiveIsCurrent() || !s.Clean || !s.Inventoried || s.Ranks == 0 || s.Terminating || s.Returned != nil:
	case mark.Step == 0 || mark == s.Fetched || mark == s.FetchFailed && now.Sub(s.FetchFailedAt) < fetchRetry:
	case s.Want.Run.WorldSize > 0:
		return mark, s.Want.Run.BaseRank
	case s.Run.WorldSize > 0:
		return mark, s.Run.BaseRank
	}
	return protocol.Mark{}, 0
}

func (m *machine) fetch(mark protocol.Mark, base int) {
	if mark == m.s.Fetching {
		return
	}
	if mark == m.s.FetchFailed {
		m.s.FetchFailed = protocol.Mark{} // the retry may succeed
	}
	if mark.Step > 0 {
		m.s.Fetched = protocol.Mark{} // the next one replaces it in memory
	}
	m.s.Fetching = mark
	m.emit(Fetch{Mark: mark, BaseRank: base})
}

func (e Copied) apply(m *machine) {
	if e.Local < 0 || e.Local >= len(m.s.Rank) || e.Copy.Mark != m.s.Copying {
		return
	}
	r := &m.s.Rank[e.Local]
	if r.Copied.Mark != e.Copy.Mark {
		m.s.CopyTook = max(e.Took, time.Millisecond)
	}
	r.Copied = e.Copy
}

func (e ManifestWritten) apply(m *machine) {
	if e.Mark == m.s.Manifesting {
		m.s.Manifested = e.Mark
	}
}

func (e Fetched) apply(m *machine) {
	if e.Mark != m.s.Fetching || !m.s.Clean {
		return
	}
	for i := range m.s.Rank {
		if i < len(e.Sealed) {
			m.s.Rank[i].Sealed = e.Sealed[i]
		}
	}
	if e.Failed {
		m.s.FetchFailed, m.s.FetchFailedAt = e.Mark, m.now
	} else {
		m.s.Fetched = e.Mark
	}
}
