package ckptagent

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// warmAnyway is how long after the start of a generation standbys are warmed even if not every rank has reported a first step: not every
// script reports steps.
const warmAnyway = 15 * time.Second

const sigkill, sigterm = 9, 15

// machine is one call of Step.
type machine struct {
	s       State
	now     time.Time
	effects []Effect
}

// Step handles one event and returns the new state and the effects.
func Step(s State, e Event, now time.Time) (State, []Effect) {
	m := machine{s: s.clone(), now: now}
	e.apply(&m)
	m.advance()
	return m.s, m.effects
}

func (m *machine) emit(e Effect) { m.effects = append(m.effects, e) }

// advance takes the next action that the levels require, if any.
func (m *machine) advance() {
	m.copy(m.s.copyWanted()) // before levels that rise with it
	m.awaitCopy(m.s.nextCopy())
	m.adopt()
	m.stopWaiting()
	m.drive(m.s.goal(m.now))
	m.setBarrier(m.s.barrierWanted(m.now))
	m.writeManifest(m.s.manifestWanted())
	m.fetch(m.s.fetchWanted(m.now))
	m.warm(m.s.warmWanted(m.now))
	m.inspectCommand()
	m.noteWait()
	m.keep()
	m.look()
	m.try()
}

// drive takes the next action towards a goal.
func (m *machine) drive(g goal) {
	switch g {
	case goalTerminate:
		m.terminate()
	case goalPass:
		m.pass()
	case goalLeave:
		m.leave()
	case goalConclude:
		m.endConcluded()
	case goalSkip:
		m.skip(m.s.Want.Run)
	case goalStart:
		m.start()
	case goalLevels:
		m.passLevels()
	case goalHalt:
		m.halt()
	case goalExit:
		m.exit()
	case goalNone:
	}
}

// halt ends the generation here. A whole command in its first run continues if other pods of the gang have launchers.
func (m *machine) halt() {
	if m.s.Want.Launched && m.s.releasable() {
		m.awaitLauncher(m.s.Want.Generation)
	}
	m.abandon()
	if !m.s.abandoned() {
		return // an inventory without that is under way
	}
	m.settle(false)
	if m.s.settled() {
		m.s.Generation, m.s.Phase = m.s.Want.Generation, protocol.StateHalted
	}
}

// abandon records the restore step of a generation that never ran here: steps that this pod sealed above it were discarded, while the other
// pods may have sealed the same numbers again. HALTED is reported only after an inventory that takes this into account.
func (m *machine) abandon() {
	if run := m.s.Want.Run; !m.s.abandoned() && !m.s.Counting {
		m.s.Abandoned, m.s.Inventoried = abandonedBy(run), false
	}
}

// start starts the wanted generation once all processes of the previous one are gone.
func (m *machine) start() {
	run, original := m.s.Want.Run, m.s.firstRunCounts()
	if !original {
		m.settle(false)
		if !m.s.settled() {
			return
		}
	}
	if m.s.Trying != (protocol.TrialID{}) {
		return // its processes are being ended
	}
	asks := Launched{Nodes: m.s.Nodes, NodesFlag: m.s.NodesFlag, NodesRemedy: m.s.NodesRemedy}
	if ok, why := asks.fits(run); !ok {
		m.s.Refused = why
		m.returnLauncher(protocol.ExitRefused, m.s.Refused)
		return
	}
	m.begin(run)
	m.emit(Start{Run: run, Ranks: m.s.Ranks, FirstRun: original})
	m.copy(m.s.copyWanted())
	m.passLevels()
}

// begin sets the state of a generation whose ranks are about to start.
func (m *machine) begin(run protocol.Run) {
	m.s.Generation, m.s.Run, m.s.Phase = run.Number, run, protocol.StateRunning
	m.s.Clean, m.s.Inventoried, m.s.Answers = false, false, nil
	m.s.Abandoned = abandonedBy(run)
	m.s.CommonStep, m.s.ReclaimBelow, m.s.BarrierStep, m.s.DurableStep = run.RestoreStep, run.RestoreStep, 0, protocol.Point{}
	m.s.Fetched, m.s.FetchFailed = protocol.Mark{}, protocol.Mark{}
	if !m.s.repairing() {
		m.s.Timeline = protocol.Timeline{}
	}
	t := &m.s.Timeline // ranks that were being ended may have gone on for a moment
	t.RunReceived, t.Started, t.Restored, t.FirstStep = m.now, time.Time{}, time.Time{}, time.Time{}
	for i := range m.s.Rank {
		r := &m.s.Rank[i]
		kept := slices.DeleteFunc(slices.Clone(r.Sealed), run.Restores().GivesUp)
		m.s.Rank[i] = Rank{Sealed: kept, StandbyReady: r.StandbyReady, Step: run.RestoreStep, Copied: r.Copied, Span: r.Span, Grouped: r.Grouped}
	}
}

// passLevels passes commonStep, reclaimBelow and durableStep to the arenas when they rise.
func (m *machine) passLevels() {
	commonStep, reclaimBelow := max(m.s.CommonStep, m.s.Want.CommonStep), max(m.s.ReclaimBelow, m.s.Want.ReclaimBelow)
	durableStep := m.s.DurableStep
	if d := (protocol.Point{Branch: m.s.Want.DurableBranch, Step: m.s.Want.DurableStep}); d.Compare(durableStep) > 0 {
		durableStep = d
	}
	if commonStep == m.s.CommonStep && reclaimBelow == m.s.ReclaimBelow && durableStep == m.s.DurableStep {
		return
	}
	m.s.CommonStep, m.s.ReclaimBelow, m.s.DurableStep = commonStep, reclaimBelow, durableStep
	m.emit(Levels{CommonStep: commonStep, ReclaimBelow: reclaimBelow, Durable: durableStep})
}

// exit ends all ranks and makes the launcher return. In a terminating pod processes get SIGTERM first, as without Holdfast: a script may
// use the grace period. The state in memory is no longer needed, so it is not verified and HALTED is not reported.
func (m *machine) exit() {
	m.clear(m.s.Terminating)
	if !m.s.Clean {
		return
	}
	m.s.Generation = m.s.Want.Generation
	code, why := m.s.Want.ExitCode, ""
	if m.s.Launch > 1 && m.s.Want.Launch == 0 {
		code, why = protocol.ExitRefused, fmt.Sprintf("this is launcher %d of the container's command, and the coordinator's version supports only one: upgrade holdfast-controller", m.s.Launch)
	}
	if m.s.Phase != protocol.StateFinished && m.s.settled() {
		m.s.Phase = protocol.StateHalted
	}
	if m.s.Launcher != "" || m.s.Whole {
		m.returnLauncher(code, why)
	}
}

// pass makes a launcher return that the gang has left behind: all its ranks succeeded, here or in the previous pod of the slot.
func (m *machine) pass() {
	if m.clear(false); m.s.Clean {
		m.returnLauncher(0, "")
	}
}

func (m *machine) returnLauncher(code int, message string) {
	m.s.Returned = &Returned{Code: code, Message: message}
	m.emit(Return{*m.s.Returned})
}

// settle takes the next action towards a state without processes and with a complete inventory.
func (m *machine) settle(gentle bool) {
	m.clear(gentle)
	if m.s.Clean && !m.s.settled() && !m.s.Counting {
		m.s.Counting = true
		m.emit(TakeInventory{Abandoned: m.s.Abandoned})
	}
}

// clear ends every process, unless that is done or under way.
func (m *machine) clear(gentle bool) {
	if m.s.Clean || m.s.Ending {
		return
	}
	m.s.Ending = true
	end := m.s.haltTime()
	if gentle {
		end = End{Within: m.s.gentle(m.now)}
	}
	m.s.EndingSince = m.now
	m.emit(end)
}

func (m *machine) warm(warm bool) {
	if warm != m.s.Warm {
		m.s.Warm = warm
		m.emit(Standbys{Warm: warm})
	}
}

// rank returns the rank of an event, nil if its generation is not the present one.
func (m *machine) rank(generation int64, local int) *Rank {
	if generation != m.s.Run.Number || m.s.Clean || local < 0 || local >= len(m.s.Rank) {
		return nil
	}
	return &m.s.Rank[local]
}

func (e Resumed) apply(m *machine) {
	m.s.Volatile = Volatile{DisconnectedSince: m.now}
	m.s.Incarnation++
	if !e.SameContainer {
		old := m.s.Durable
		m.s.Durable = New().Durable
		m.s.Incarnation, m.s.Generation, m.s.Abandoned = old.Incarnation, old.Generation, old.Abandoned
		m.s.Manifested, m.s.Containers = old.Manifested, old.Containers+1
	}
	m.emit(OfferPort{})
	m.resumeTrial()
	if m.s.StateLost {
		m.settle(false)
	}
}

func (e Launched) apply(m *machine) {
	if m.s.Whole {
		m.release(m.s.Generation) // Serves and Matches have checked it
	}
	if e.ID != m.s.Launcher {
		m.nextLaunch()
	}
	m.s.Launcher, m.s.Attached, m.s.MaxRestarts = e.ID, true, e.MaxRestarts
	if m.s.Ranks == 0 {
		m.s.Ranks, m.s.Nodes, m.s.NodesFlag, m.s.NodesRemedy = e.Ranks, e.Nodes, e.NodesFlag, e.NodesRemedy
		m.s.Rank = make([]Rank, e.Ranks)
	}
	if m.s.Clean {
		m.settle(false)
	}
}

// nextLaunch starts with another launcher. The previous one has no process any more; the gang decides which of its sealed steps are given
// up.
func (m *machine) nextLaunch() {
	d := &m.s.Durable
	d.Launch++
	if d.Launch == 1 {
		return
	}
	d.Returned, d.Run, d.Rank, d.Ranks, d.Timeline = nil, protocol.Run{}, nil, 0, protocol.Timeline{}
	d.Inventoried, d.Known, d.BarrierStep, d.LeftForLauncher = false, false, 0, 0
	if d.Phase = protocol.StateHalted; d.Generation == 0 {
		d.Phase = protocol.StateIdle
	}
}

func (e LaunchRefused) apply(m *machine) { m.s.Refused = e.Message }

func (e Directed) apply(m *machine) {
	d := e.Directive
	if len(m.s.Modules) == 0 && len(d.Modules) > 0 {
		m.s.Modules = d.Modules
		m.emit(SetModules{Modules: d.Modules})
	}
	if d.Generation < m.s.Generation || d.Generation < m.s.Want.Generation {
		return
	}
	m.s.Want = d
	if m.s.StateLost {
		m.s.StateLost, m.s.Generation = false, d.Generation
	}
	if d.Order != protocol.OrderHalt || m.s.Clean || m.s.Terminating && m.s.Ending { // the pod ends without it
		return
	}
	if !m.s.repairing() {
		m.s.Timeline = protocol.Timeline{}
	}
	if m.s.Timeline.HaltReceived.IsZero() {
		m.s.Timeline.HaltReceived = m.now
	}
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
	if m.s.Timeline.Started.IsZero() && m.s.every(func(r Rank) bool { return r.PID != 0 }) {
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
	if byAgent && e.Traceback == "" || m.s.answersHalt(e) {
		return
	}
	exit := e.Exit
	exit.Restoring = r.Restoring
	if byAgent {
		exit.Code, exit.Signal = 1, 0
	}
	r.Exit = &exit
	if m.s.Ending {
		return
	}
	if e.Code != 0 && m.s.Phase == protocol.StateRunning {
		m.s.Phase = protocol.StateFailed
		m.s.Timeline = protocol.Timeline{Detected: m.now}
	}
	if m.s.every(func(r Rank) bool { return r.Exit != nil && r.Exit.Code == 0 }) {
		m.s.Phase = protocol.StateFinished
	}
}

func (e Gone) apply(m *machine) {
	if !m.s.Ending {
		return
	}
	m.s.Waited, m.s.WaitedFor = len(e.Waited), 0
	if len(e.Waited) > 0 {
		m.s.WaitedFor = m.now.Sub(m.s.EndingSince)
	}
	for i := range m.s.Rank {
		r := &m.s.Rank[i]
		answer := slices.Contains(e.Waited, i) && m.s.haltedBefore(e.Tracebacks[i].At)
		if tb, ok := e.Tracebacks[i]; ok && r.Exit == nil && !answer {
			r.Exit = &protocol.Exit{Code: 1, At: tb.At, Traceback: tb.Text, Restoring: r.Restoring}
		}
		r.Alive, r.PID = false, 0
	}
	m.s.Ending, m.s.Clean, m.s.FirstRun = false, true, false
	if m.s.repairing() {
		m.s.Timeline.Stopped = m.now
	}
	m.emit(OfferPort{})
	if !m.s.Known {
		m.settle(false)
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
	if m.s.repairing() {
		m.s.Timeline.Verified = m.now
	}
	if m.s.Phase == protocol.StateIdle && m.s.Generation > 0 { // the container restarted, and its processes are gone
		m.s.Phase = protocol.StateHalted
	}
}

func (e Progress) apply(m *machine) {
	r := m.rank(e.Generation, e.Local)
	if r == nil {
		return
	}
	if e.Attached && !r.Attached {
		r.Attached = true
		if m.s.Timeline.Restored.IsZero() && m.s.Timeline.FirstStep.IsZero() && m.s.every(func(r Rank) bool { return r.Attached }) {
			m.s.Timeline.Started = m.now
		}
	}
	r.Restored = r.Restored || e.Restored
	r.Restoring = (r.Restoring || e.Restoring) && !r.Restored && e.Step == 0
	r.Stepped = r.Stepped || e.Step > m.s.Run.RestoreStep
	r.Step = max(r.Step, e.Step)
	if e.Span > 0 {
		r.Span = e.Span
	}
	if e.Restored {
		r.Grouped = e.Grouped
	}
	if m.s.Timeline.Restored.IsZero() && m.s.every(func(r Rank) bool { return r.Restored }) {
		m.s.Timeline.Restored = m.now
	}
	m.noteFirstStep()
}

// noteFirstStep records when all ranks had finished a step of this generation. If a script uses the client, the client's report counts: one
// optimizer step may be only a part of a step, two are more than one.
func (m *machine) noteFirstStep() {
	if m.s.Timeline.FirstStep.IsZero() && m.s.Phase == protocol.StateRunning && m.s.every(Rank.hasStepped) {
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
	m.noteFirstStep()
}

func (e Saved) apply(m *machine) {
	if r := m.rank(e.Generation, e.Local); r != nil {
		r.Saves = &e.Saves
	}
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

func (e Capabilities) apply(m *machine) {
	if len(e.Modules) > len(m.s.Modules) {
		m.s.Modules = e.Modules
	}
	m.s.StateBytes, m.s.Notes, m.s.Storage, m.s.Grace, m.s.Unsure = e.StateBytes, e.Notes, e.Storage, e.Grace, e.Unsure
}

func (Tick) apply(*machine) {}
