package ckptagent

import (
	"slices"
	"time"
)

// Bounds of going on without a coordinator.
const (
	// leaveAlone is how long a pod that is told to go trains on while no coordinator is there; drainAlone the same where a coordinator
	// that is back in time can have its state copied: one that died is replaced within its lease, 15 s, and some seconds.
	leaveAlone = 5 * time.Second
	drainAlone = 20 * time.Second
	// holdAlone is how long ranks are held for a coordinator that is away.
	holdAlone = 10 * time.Second
	// stayAlone is how long a pod that is told to go, and does not train any more, waits for one: its end counts as a failure of its
	// Job, which may not be allowed any, unless somebody takes it out of that Job first.
	stayAlone = time.Minute
	// lastMoment is what is left of the grace when such a pod ends by itself instead of being killed.
	lastMoment = 2 * time.Second
	// defaultGrace is what Kubernetes gives a pod that says nothing.
	defaultGrace = 30 * time.Second
	// leastReserve is the least of the grace that is kept for ending processes.
	leastReserve = 3 * time.Second
	// haltGentle is how long ranks of a leaving pod may take to end while the whole gang waits for them.
	haltGentle = 5 * time.Second
	// fetchAgain is how long a fetch that could not be done waits for its next try: only what no other step can
	// stand in for is asked for still.
	fetchAgain = 30 * time.Second
	// launcherPatience is how long a signal that only the launcher told of waits for the pod's own: the
	// kubelet's reaches both.
	launcherPatience = time.Second
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

// Shutdown is what is known of the end of a pod that was told to go.
type Shutdown struct {
	// Leaving: the pod is being shut down, by this signal.
	Leaving bool `json:"leaving,omitempty"`
	Signal  int  `json:"signal,omitempty"`
	// ByLauncher: only the launcher has told so.
	ByLauncher bool `json:"byLauncher,omitempty"`
	// LeftAt is when the pod was told to go, LeaveBy until when it goes on training, StayBy until when it then waits to be taken out
	// of its Job; zero: at once.
	LeftAt  time.Time `json:"leftAt,omitzero"`
	LeaveBy time.Time `json:"leaveBy,omitzero"`
	StayBy  time.Time `json:"stayBy,omitzero"`
}

// Contact says whether the conversation with the coordinator goes on.
type Contact struct{ Up bool }

// Dismissed says that the pod's end is no failure of its Job: it was taken out of that, or that is over.
type Dismissed struct{}

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

// hold passes the gang's hold on, and lifts it where nobody is there to do so.
func (m *machine) hold() {
	switch {
	case m.s.Clean:
		m.s.Hold = 0 // the next generation begins with nobody held
		return
	case m.s.Ending:
		return
	}
	hold := m.s.Hold
	if m.news() {
		hold = m.s.Want.Hold
	}
	if m.alone() >= holdAlone {
		hold = 0
	}
	if hold != m.s.Hold {
		m.s.Hold = hold
		m.emit(Hold{Step: hold})
	}
}

// news says whether the newest directive speaks of the present.
func (m *machine) news() bool {
	return m.s.Want.Order != OrderNone && m.s.Want.Generation >= m.s.Generation
}

// alone is how long there has been no coordinator.
func (m *machine) alone() time.Duration {
	if m.s.AloneSince.IsZero() {
		return 0
	}
	return m.now.Sub(m.s.AloneSince)
}

// copy copies the step that is asked for once every local rank holds it.
func (m *machine) copy() {
	if !m.news() {
		return // what is under way goes on until somebody says otherwise
	}
	mark := m.s.Want.Copy
	settled := !m.s.Clean || m.s.Inventoried
	switch {
	case mark.Step == 0 || mark.Generation != m.s.Run.Number:
		mark = Mark{}
	case m.every(func(r Rank) bool { return r.Copied.Mark == mark }):
		mark = Mark{}
	case mark != m.s.Copying && !(settled && m.every(func(r Rank) bool { return slices.Contains(r.Sealed, mark.Step) })):
		mark = Mark{}
	}
	if mark != m.s.Copying {
		m.s.Copying = mark
		m.emit(CopyStep{Mark: mark, BaseRank: m.s.Run.BaseRank, World: m.s.Run.WorldSize})
	}
}

func (m *machine) manifest() {
	if !m.news() {
		return
	}
	want := m.s.Want.Manifest
	if want.Mark.Step == 0 || want.Mark == m.s.Manifested || len(want.Ranks) == 0 {
		want = Manifest{}
	}
	if want.Mark != m.s.Manifesting {
		m.s.Manifesting = want.Mark
		m.emit(WriteManifest{want})
	}
}

// fetch brings the step that is asked for while no generation runs. Which ranks these are the directive
// says, or the generation that ran here.
func (m *machine) fetch() {
	mark, base := Mark{}, 0
	if m.news() && m.s.Clean && m.s.Inventoried && m.s.Ranks > 0 && !m.s.Leaving && m.s.Returned == nil {
		mark = m.s.Want.Fetch
	}
	switch run := m.s.Want.Run; {
	case mark.Step == 0 || mark == m.s.Fetched || mark == m.s.FetchFailed && m.now.Sub(m.s.FetchFailedAt) < fetchAgain:
		mark = Mark{}
	case run.WorldSize > 0:
		base = run.BaseRank
	case m.s.Run.WorldSize > 0:
		base = m.s.Run.BaseRank
	default:
		mark = Mark{}
	}
	if mark != m.s.Fetching {
		if mark == m.s.FetchFailed {
			m.s.FetchFailed = Mark{} // tried again, it may yet succeed
		}
		if mark.Step > 0 {
			m.s.Fetched = Mark{} // another step takes its place in memory
		}
		m.s.Fetching = mark
		m.emit(Fetch{Mark: mark, BaseRank: base})
	}
}

func (e Contact) apply(m *machine) {
	switch {
	case e.Up:
		m.s.AloneSince, m.s.Dismissed = time.Time{}, false
	case m.s.AloneSince.IsZero():
		m.s.AloneSince = m.now
	}
}

func (Dismissed) apply(m *machine) { m.s.Dismissed = true }

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

// grace is how long the pod has in all once it is told to go.
func (m *machine) grace() time.Duration {
	if m.s.Grace > 0 {
		return m.s.Grace
	}
	return defaultGrace
}

// goes says whether a pod that is told to go ends what runs now.
func (m *machine) goes() bool {
	halted := m.news() && m.s.Want.Order == OrderHalt
	if m.s.Whole {
		return true // nothing of it could be copied, and what it does about the signal needs all of the grace
	}
	return m.s.Clean || m.s.Ending || m.s.Dismissed || halted || !m.now.Before(m.s.LeaveBy) || m.deserted()
}

// deserted says whether a pod that is told to go waits no longer for a coordinator before it ends what runs.
func (m *machine) deserted() bool {
	if m.copyable() {
		return m.alone() >= drainAlone
	}
	return m.alone() >= leaveAlone // nobody could save more than the script itself, which may want all of its grace for that
}

// copyable says whether a coordinator could have copied what the ranks hold.
func (m *machine) copyable() bool {
	return m.s.Storage && m.every(func(r Rank) bool { return len(r.Sealed) > 0 })
}

// stays says whether a pod that is told to go, and has halted, waits to be taken out of its Job.
func (m *machine) stays() bool {
	alone := min(m.alone(), m.now.Sub(m.s.LeftAt)) // who could do it may have been away for long before: it may be back just in time
	return !m.s.Dismissed && m.now.Before(m.s.StayBy) && alone < stayAlone
}

// gentle is how long ranks of a leaving pod may take to end by themselves.
func (m *machine) gentle() time.Duration {
	if m.s.LeftAt.IsZero() {
		return m.grace() - m.reserve()/2 // the launcher is gone; nobody has set a time
	}
	left := m.s.LeftAt.Add(m.grace()).Sub(m.now) - m.reserve()/2
	if m.s.Whole {
		return max(left, 0)
	}
	if m.news() && m.s.Want.Order == OrderHalt || m.alone() >= drainAlone && m.copyable() {
		left = min(left, haltGentle) // what is in memory is to be copied yet
	}
	return max(left, 0)
}

// reserve is the part of the grace that is kept for ending processes.
func (m *machine) reserve() time.Duration {
	return min(max(leastReserve, m.grace()/5), m.grace())
}
