package ckptagent

import (
	"slices"
	"time"
)

const (
	// holdAlone is how long ranks are held for a coordinator that is away.
	holdAlone = 10 * time.Second
	// fetchAgain is how long a fetch that could not be done waits for its next try: only what no other step can
	// stand in for is asked for still.
	fetchAgain = 30 * time.Second
)

// Mark names one step in storage: a generation that went back makes the same steps anew.
type Mark struct {
	Step       uint64 `json:"step,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
}

// Copy is one rank's file in storage.
type Copy struct {
	Mark     Mark   `json:"mark"`
	Length   uint64 `json:"length"`
	Checksum uint32 `json:"checksum"`
}

// Manifest says that a step lies whole in storage; Ranks holds length and checksum of each, in order. Recorded
// are the marks that the gang's record names.
type Manifest struct {
	Mark     Mark
	Ranks    []Copy
	Recorded []Mark
}

// Copied says that a rank's step lies whole and synced in storage.
type Copied struct {
	Local int
	Copy  Copy
	// Took is what copying it cost.
	Took time.Duration
}

// ManifestWritten answers WriteManifest.
type ManifestWritten struct{ Mark Mark }

// Fetched answers Fetch: the step lies sealed in every local rank's arena, or cannot be had. Sealed lists
// what each rank holds now.
type Fetched struct {
	Mark   Mark
	Failed bool
	Sealed [][]uint64
}

// Hold tells the arenas from which step on ranks stay in their save; 0: they are let go.
type Hold struct{ Step uint64 }

// CopyStep copies a step of every local rank to storage, for as long as that takes; answered by Copied for each.
// It takes the place of the one before; the zero Mark ends that. The slots are pinned before any effect that
// follows, so that levels that rose in the same directive do not give them away.
type CopyStep struct {
	Mark     Mark
	BaseRank int
	World    int
}

// WriteManifest writes a manifest, for as long as that takes; answered by ManifestWritten. Then what is older
// than everything that is recorded is removed. The zero Mark ends the one before.
type WriteManifest struct{ Manifest Manifest }

// Fetch brings a step into the arena of every local rank that does not hold it; answered by Fetched. The zero
// Mark ends the one before.
type Fetch struct {
	Mark     Mark
	BaseRank int
}

func (Hold) effect()          {}
func (CopyStep) effect()      {}
func (WriteManifest) effect() {}
func (Fetch) effect()         {}

// holdWanted is from which step on ranks are to stay in their save: what the gang wants, nothing where nobody is there to lift it.
func (s State) holdWanted(now time.Time) uint64 {
	switch {
	case s.Clean:
		return 0 // the next generation begins with nobody held
	case s.Ending:
		return s.Hold
	case s.alone(now) >= holdAlone:
		return 0
	case s.news():
		return s.Want.Hold
	}
	return s.Hold
}

// holdAt tells the arenas, which are nobody's once nothing runs.
func (m *machine) holdAt(step uint64) {
	told := step == m.s.Hold || m.s.Clean
	m.s.Hold = step
	if !told {
		m.emit(Hold{Step: step})
	}
}

// copyWanted is the step that is to be copied: that which is asked for, from when every local rank holds it until it is copied.
func (s State) copyWanted() Mark {
	if !s.news() {
		return s.Copying // what is under way goes on until somebody says otherwise
	}
	mark := s.Want.Copy
	settled := !s.Clean || s.Inventoried
	switch {
	case mark.Step == 0 || mark.Generation != s.Run.Number:
	case s.every(func(r Rank) bool { return r.Copied.Mark == mark }):
	case mark != s.Copying && !(settled && s.every(func(r Rank) bool { return slices.Contains(r.Sealed, mark.Step) })):
	default:
		return mark
	}
	return Mark{}
}

func (m *machine) copy(mark Mark) {
	if mark != m.s.Copying {
		m.s.Copying = mark
		m.emit(CopyStep{Mark: mark, BaseRank: m.s.Run.BaseRank, World: m.s.Run.WorldSize})
	}
}

// manifestWanted is the manifest that is to be written and was not yet.
func (s State) manifestWanted() Manifest {
	want := s.Want.Manifest
	switch {
	case !s.news():
		return Manifest{Mark: s.Manifesting}
	case want.Mark.Step == 0 || want.Mark == s.Manifested || len(want.Ranks) == 0:
		return Manifest{}
	}
	return want
}

func (m *machine) writeManifest(want Manifest) {
	if want.Mark != m.s.Manifesting {
		m.s.Manifesting = want.Mark
		m.emit(WriteManifest{want})
	}
}

// fetchWanted is the step that is to be brought while no generation runs, and the first of the ranks that it is for. Which ranks
// these are the directive says, or the generation that ran here.
func (s State) fetchWanted(now time.Time) (mark Mark, base int) {
	mark = s.Want.Fetch
	switch {
	case !s.news() || !s.Clean || !s.Inventoried || s.Ranks == 0 || s.Leaving || s.Returned != nil:
	case mark.Step == 0 || mark == s.Fetched || mark == s.FetchFailed && now.Sub(s.FetchFailedAt) < fetchAgain:
	case s.Want.Run.WorldSize > 0:
		return mark, s.Want.Run.BaseRank
	case s.Run.WorldSize > 0:
		return mark, s.Run.BaseRank
	}
	return Mark{}, 0
}

func (m *machine) fetch(mark Mark, base int) {
	if mark == m.s.Fetching {
		return
	}
	if mark == m.s.FetchFailed {
		m.s.FetchFailed = Mark{} // tried again, it may yet succeed
	}
	if mark.Step > 0 {
		m.s.Fetched = Mark{} // another step takes its place in memory
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
