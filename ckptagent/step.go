package ckptagent

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// warmAnyway is how long after the start of a generation standbys are warmed even though not every rank
// has told of a first step: not every script tells.
const warmAnyway = 15 * time.Second

// exitRefused is the exit code of a launcher that could not be honoured.
const exitRefused = 2

const sigkill, sigterm = 9, 15

// machine is one Step under way.
type machine struct {
	s       State
	now     time.Time
	effects []Effect
}

// Step takes one event and says what is to be done.
func Step(s State, e Event, now time.Time) (State, []Effect) {
	m := machine{s: s.clone(), now: now}
	e.apply(&m)
	m.advance()
	return m.s, m.effects
}

func (m *machine) emit(e Effect) { m.effects = append(m.effects, e) }

// advance does the next thing that the levels ask for, if any.
func (m *machine) advance() {
	m.copy() // before levels that rise with it
	m.adopt()
	m.wait()
	switch {
	case m.s.Leaving && !(m.news() && m.s.Want.Order == OrderExit) && m.goes():
		m.leave()
	case m.s.Returned != nil:
	case m.s.Concluded != nil:
		m.concluded()
	case m.s.Want.Generation < m.s.Generation:
		// Old news: the generation has moved on here.
	case m.s.Want.Order == OrderRun:
		m.run()
	case m.s.Want.Order == OrderHalt:
		m.halt()
	case m.s.Want.Order == OrderExit:
		m.exit()
	}
	m.hold()
	m.manifest()
	m.fetch()
	m.warm()
	m.notice()
}

// halt ends the generation here. A whole command whose first run goes on stays, where others of the gang have launchers.
func (m *machine) halt() {
	if m.s.Want.Launched && m.s.releasable() {
		m.await()
	}
	if m.abandon() && m.ended(false) {
		m.s.Generation, m.s.Phase = m.s.Want.Generation, Halted
	}
}

// abandon takes note of where a generation that never ran here restored: what this pod sealed above that
// step is of a history that is given up, while the others of the gang may have sealed the same steps anew.
// It says whether HALTED may be said once all has ended; it may not while an inventory that knows nothing
// of this is under way.
func (m *machine) abandon() bool {
	run := m.s.Want.Run
	switch {
	case run.Number <= max(m.s.Generation, m.s.Past.Generation):
		return true
	case m.s.Counting:
		return false
	}
	m.s.Past, m.s.Inventoried = Past{Generation: run.Number, Step: run.RestoreStep}, false
	return true
}

// run starts the wanted generation if it is a new one and all is ready, else passes the levels on.
func (m *machine) run() {
	run := m.s.Want.Run
	if run.Number <= m.s.Generation {
		if run.Number == m.s.Run.Number && !m.s.Clean {
			m.levels()
		}
		return
	}
	if !m.s.Attached || m.s.Ranks == 0 || m.s.Leaving {
		return
	}
	goesOn := m.s.provisional() && run.RestartCount == 0 // where others were restarted, all begin together
	if m.misfit(run) || !goesOn && !m.ended(false) {
		return
	}
	if m.s.Nodes != 0 && m.s.Nodes != run.Nodes {
		remedy := cmp.Or(m.s.NodesRemedy, "leave the flag out, or make it equal to the job's parallelism")
		m.s.Refused = fmt.Sprintf("%s: asks for %d, the gang has %d pods; %s", m.s.NodesFlag, m.s.Nodes, run.Nodes, remedy)
		m.giveBack(exitRefused, m.s.Refused)
		return
	}
	m.s.Generation, m.s.Run, m.s.Phase = run.Number, run, Running
	m.s.Clean, m.s.Inventoried = false, false
	m.s.Past = Past{Generation: run.Number, Step: run.RestoreStep}
	m.s.Common, m.s.Frontier, m.s.Hold = run.RestoreStep, run.RestoreStep, 0
	m.s.Fetched, m.s.FetchFailed = Mark{}, Mark{}
	if !m.repairing() {
		m.s.Timeline = Timeline{}
	}
	m.s.Timeline.RunReceived = m.now
	for i := range m.s.Rank {
		r := &m.s.Rank[i]
		kept := slices.DeleteFunc(slices.Clone(r.Sealed), func(step uint64) bool { return step > run.RestoreStep })
		m.s.Rank[i] = Rank{Sealed: kept, StandbyReady: r.StandbyReady, Step: run.RestoreStep, Copied: r.Copied}
	}
	m.emit(Start{Run: run, Ranks: m.s.Ranks, Original: goesOn})
	m.copy()
	m.levels()
}

// levels passes common and frontier on as they rise.
func (m *machine) levels() {
	common, frontier := max(m.s.Common, m.s.Want.Common), max(m.s.Frontier, m.s.Want.Frontier)
	if common == m.s.Common && frontier == m.s.Frontier {
		return
	}
	m.s.Common, m.s.Frontier = common, frontier
	m.emit(Levels{Common: common, Frontier: frontier})
}

// exit ends what runs and lets the launcher return. In a pod that is being shut down anyway processes are asked first, as
// without Holdfast: a script may use its grace. What is held in memory is of no use any more, so nothing is kept waiting to
// verify it, and HALTED is not said of it.
func (m *machine) exit() {
	if !m.cleared(m.s.Leaving) {
		return
	}
	m.s.Generation = m.s.Want.Generation
	if m.s.Phase != Finished && (m.s.Inventoried || m.s.Ranks == 0) {
		m.s.Phase = Halted
	}
	if m.s.Launcher != "" || m.s.Whole {
		m.giveBack(m.s.Want.ExitCode, "")
	}
}

// leave ends what runs, gently, because the pod is being shut down. Then it stays until it is told to exit, which
// is once its Job has let go of it, so that its end is no failure of that Job; at most as long as there is time.
func (m *machine) leave() {
	halted := m.news() && m.s.Want.Order == OrderHalt
	if halted && !m.abandon() || !m.ended(true) {
		return
	}
	switch {
	case halted:
		m.s.Generation, m.s.Phase = m.s.Want.Generation, Halted
	case m.s.Phase == Running || m.s.Phase == Failed:
		m.s.Phase = Halted
	}
	if m.stays() {
		return
	}
	if (m.s.Launcher != "" || m.s.Whole) && m.s.Returned == nil {
		m.giveBack(m.s.leaveCode(), "")
	}
}

// leaveCode is how a pod that was told to go ends: as its command answered, without us, where that is a rank and was not killed.
func (s State) leaveCode() int {
	if s.Whole && len(s.Rank) > 0 {
		e := s.Rank[0].Exit
		if s.Run.Number == 0 {
			e = s.Command.Exit
		}
		if e != nil && e.Signal != sigkill {
			return e.Code
		}
	}
	return 128 + s.Signal
}

func (m *machine) giveBack(code int, message string) {
	m.s.Returned = &Returned{Code: code, Message: message}
	m.emit(Return{*m.s.Returned})
}

// ended says whether no process is left and the inventory is taken, and sees to it where not.
func (m *machine) ended(gentle bool) bool {
	switch {
	case !m.cleared(gentle):
		return false
	case !m.s.Inventoried && m.s.Ranks > 0:
		if !m.s.Counting {
			m.s.Counting = true
			m.emit(TakeInventory{Past: m.s.Past})
		}
		return false
	}
	return true
}

// cleared says whether no process is left, and sees to it where one is.
func (m *machine) cleared(gentle bool) bool {
	if m.s.Clean || m.s.Ending {
		return m.s.Clean
	}
	m.s.Ending = true
	end := End{Gentle: gentle}
	if gentle {
		end.Within = m.gentle()
	}
	m.emit(end)
	return false
}

// unused says that a launcher waits for the first generation here, as in a pod that replaces another one.
func (m *machine) unused() bool {
	return m.s.Run.Number == 0 && m.s.Ranks > 0 && m.s.Clean && m.s.Returned == nil
}

// warm says whether standbys may be warmed: while a generation runs and is past its first step, and before the first one.
func (m *machine) warm() {
	started := m.s.Timeline.Started
	settled := !started.IsZero() && (!m.s.Timeline.FirstStep.IsZero() || m.now.Sub(started) >= warmAnyway)
	warm := m.s.Phase == Running && !m.s.Ending && settled || m.unused() && len(m.s.Modules) > 0
	warm = warm && m.s.Attached && !m.s.Leaving && !m.s.Whole
	if warm != m.s.Warm {
		m.s.Warm = warm
		m.emit(Standbys{Warm: warm})
	}
}

// rank finds the rank that an event of a generation speaks of, nil if that is not the present one.
func (m *machine) rank(generation uint64, local int) *Rank {
	if generation != m.s.Run.Number || m.s.Clean || local < 0 || local >= len(m.s.Rank) {
		return nil
	}
	return &m.s.Rank[local]
}

func (m *machine) every(is func(Rank) bool) bool {
	return len(m.s.Rank) > 0 && !slices.ContainsFunc(m.s.Rank, func(r Rank) bool { return !is(r) })
}

func (e Resumed) apply(m *machine) {
	m.s.Volatile = Volatile{AloneSince: m.now}
	m.s.Incarnation++
	if !e.SameContainer {
		old := m.s.Durable
		m.s.Durable = New().Durable
		m.s.Incarnation, m.s.Generation, m.s.Past = old.Incarnation, old.Generation, old.Past
		m.s.Manifested, m.s.Containers = old.Manifested, old.Containers+1
	}
	m.emit(OfferPort{})
	if m.s.Forgot {
		m.ended(false)
	}
}

func (e Launched) apply(m *machine) {
	if m.s.Whole {
		m.release() // Serves has allowed it
	}
	m.s.Launcher, m.s.Attached = e.ID, true
	if m.s.Ranks == 0 {
		m.s.Ranks, m.s.Nodes, m.s.NodesFlag, m.s.NodesRemedy = e.Ranks, e.Nodes, e.NodesFlag, e.NodesRemedy
		m.s.Rank = make([]Rank, e.Ranks)
	}
	if m.s.Clean {
		m.ended(false)
	}
}

func (e LaunchRefused) apply(m *machine) { m.s.Refused = e.Message }

func (e LauncherGone) apply(m *machine) {
	if m.s.Returned != nil || m.s.Leaving && !m.s.ByLauncher { // shutting down does that to launchers
		return
	}
	m.s.Leaving, m.s.Signal, m.s.ByLauncher = true, sigkill, false
	m.s.LeaveBy, m.s.StayBy = time.Time{}, time.Time{}
}

func (e Directed) apply(m *machine) {
	d := e.Directive
	if len(m.s.Modules) == 0 && len(d.Modules) > 0 {
		m.s.Modules = d.Modules
		m.emit(Learn{Modules: d.Modules})
	}
	if d.Generation < m.s.Generation || d.Generation < m.s.Want.Generation {
		return
	}
	m.s.Want = d
	if m.s.Forgot {
		m.s.Forgot, m.s.Generation = false, d.Generation
	}
	if d.Order != OrderHalt || m.s.Clean || m.s.Leaving && m.s.Ending { // it ends by itself
		return
	}
	if !m.repairing() {
		m.s.Timeline = Timeline{}
	}
	if m.s.Timeline.HaltReceived.IsZero() {
		m.s.Timeline.HaltReceived = m.now
	}
}

// repairing says whether a repair is under way that has not led to a new generation yet.
func (m *machine) repairing() bool {
	t := m.s.Timeline
	return t.RunReceived.IsZero() && (!t.Detected.IsZero() || !t.HaltReceived.IsZero())
}

func (e Started) apply(m *machine) {
	r := m.rank(e.Generation, e.Local)
	if r == nil {
		return
	}
	r.PID, r.Alive, r.FromStandby = e.PID, true, e.FromStandby
	if e.FromStandby {
		r.StandbyReady = false
	}
	if m.s.Timeline.Started.IsZero() && m.every(func(r Rank) bool { return r.PID != 0 }) {
		m.s.Timeline.Started = m.now
	}
}

func (e Exited) apply(m *machine) {
	r := m.rank(e.Generation, e.Local)
	if r == nil || r.Exit != nil {
		return
	}
	r.Alive = false
	byAgent := m.s.Ending && (e.Signal == sigkill || e.Signal == sigterm)
	if byAgent && e.Traceback == "" {
		return
	}
	r.Exit = &Exit{Code: e.Code, Signal: e.Signal, At: e.At, Traceback: e.Traceback}
	if byAgent {
		r.Exit.Code, r.Exit.Signal = 1, 0
	}
	if m.s.Ending {
		return
	}
	if e.Code != 0 && m.s.Phase == Running {
		m.s.Phase = Failed
		m.s.Timeline = Timeline{Detected: m.now}
	}
	if m.every(func(r Rank) bool { return r.Exit != nil && r.Exit.Code == 0 }) {
		m.s.Phase = Finished
	}
}

func (e Gone) apply(m *machine) {
	if !m.s.Ending {
		return
	}
	for i := range m.s.Rank {
		r := &m.s.Rank[i]
		if tb, ok := e.Tracebacks[i]; ok && r.Exit == nil {
			r.Exit = &Exit{Code: 1, At: tb.At, Traceback: tb.Text}
		}
		r.Alive, r.PID = false, 0
	}
	m.s.Ending, m.s.Clean, m.s.Original = false, true, false
	if m.repairing() {
		m.s.Timeline.Stopped = m.now
	}
	m.emit(OfferPort{})
	if !m.s.Known {
		m.ended(false)
	}
}

func (e Inventoried) apply(m *machine) {
	if !m.s.Counting {
		return
	}
	m.s.Counting, m.s.Inventoried, m.s.Known = false, m.s.Clean, true
	for i := range m.s.Rank {
		m.s.Rank[i].Sealed = nil
		if i < len(e.Sealed) {
			m.s.Rank[i].Sealed = e.Sealed[i]
		}
	}
	if m.repairing() {
		m.s.Timeline.Verified = m.now
	}
	if m.s.Phase == Idle && m.s.Generation > 0 { // the container came back; what it ran is gone
		m.s.Phase = Halted
	}
}

func (e Progress) apply(m *machine) {
	r := m.rank(e.Generation, e.Local)
	if r == nil {
		return
	}
	if e.Attached && !r.Attached {
		r.Attached = true
		if m.s.Timeline.Restored.IsZero() && m.s.Timeline.FirstStep.IsZero() && m.every(func(r Rank) bool { return r.Attached }) {
			m.s.Timeline.Started = m.now
		}
	}
	r.Restored = r.Restored || e.Restored
	r.Stepped = r.Stepped || e.Step > m.s.Run.RestoreStep
	r.Step = max(r.Step, e.Step)
	if m.s.Timeline.Restored.IsZero() && m.every(func(r Rank) bool { return r.Restored }) {
		m.s.Timeline.Restored = m.now
	}
	m.firstStep()
}

// firstStep takes note of when all ranks had finished a step of this generation. Where a script uses the client, its word
// counts; one optimizer step may be part of a step, two are more than one.
func (m *machine) firstStep() {
	if m.s.Timeline.FirstStep.IsZero() && m.s.Phase == Running && m.every(Rank.hasStepped) {
		m.s.Timeline.FirstStep = m.now
	}
}

func (r Rank) hasStepped() bool {
	return r.Stepped || r.OptimizerSteps > 1 || r.OptimizerSteps == 1 && !r.Attached
}

func (e OptimizerSteps) apply(m *machine) {
	r := m.rank(e.Generation, e.Local)
	if r == nil {
		return
	}
	r.OptimizerSteps = max(r.OptimizerSteps, e.Steps)
	r.ResumedAt, r.ResumeKnown = e.ResumedAt, e.ResumeKnown
	m.firstStep()
}

func (e Sealed) apply(m *machine) {
	if r := m.rank(e.Generation, e.Local); r != nil {
		r.Sealed = e.Steps
	}
}

func (e StandbyChanged) apply(m *machine) {
	if e.Local >= 0 && e.Local < len(m.s.Rank) {
		m.s.Rank[e.Local].StandbyReady = e.Ready
	}
}

func (e PortOffered) apply(m *machine) { m.s.Port = e.Port }

func (e Told) apply(m *machine) {
	if len(e.Modules) > len(m.s.Modules) {
		m.s.Modules = e.Modules
	}
	m.s.StateBytes, m.s.Notes, m.s.Storage, m.s.Grace, m.s.Unsure = e.StateBytes, e.Notes, e.Storage, e.Grace, e.Unsure
}

func (e Signalled) apply(m *machine) {
	patience, stay := m.grace()-m.reserve(), m.grace()-lastMoment
	switch {
	case m.s.Leaving && (e.Launcher || !m.s.ByLauncher):
		return
	case m.s.Leaving: // the pod's own signal, behind that of its launcher
		m.s.ByLauncher = false
	default:
		m.s.Leaving, m.s.Signal, m.s.ByLauncher, m.s.LeftAt = true, e.Signal, e.Launcher, m.now
	}
	if e.Launcher {
		patience = min(patience, launcherPatience)
		stay = patience // nobody knows of it, so nobody takes the pod out of its Job
	}
	m.s.LeaveBy, m.s.StayBy = m.s.LeftAt.Add(patience), m.s.LeftAt.Add(stay)
}

func (Tick) apply(*machine) {}
