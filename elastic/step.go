package elastic

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// maxGeneration bounds what an agent may claim; far above any real number, far below overflow.
const maxGeneration = 1 << 52

// Step applies one event and returns what must be done, in order.
func Step(s *State, e Event, now time.Time) []Effect {
	s.effects, s.ranked, s.now = nil, nil, now
	if s.beganAt.IsZero() {
		s.beganAt = now
	}
	if _, report := e.(Reported); !report {
		s.planned = false
	}
	switch e := e.(type) {
	case Reported:
		s.reported(e, now)
	case Detached:
		m := &s.slots[e.Slot]
		if m.known && m.pod.UID == e.Pod && m.attached {
			m.attached = false
			s.refresh(now)
			s.emit(Direct{}) // what all were to do together may be off
		}
	case Stored:
		s.stored = max(s.stored, min(e.Generation, s.Record.Generation))
		s.storedVerdict = s.storedVerdict || (e.Verdict && s.Final())
		s.emit(Direct{})
		s.storedRevision = max(s.storedRevision, min(e.Revision, s.revision))
	case Ended:
		s.ended = true
		s.emit(Direct{})
	case Over:
		if !s.over {
			s.over = true
			s.emit(Direct{})
		}
	case Doomed:
		s.doomed(e.Pods, now)
	case Released:
		s.release(e, now)
	case Sought:
		s.sought(e, now)
	case Tick:
	}
	s.advance(now)
	s.wait(now)
	s.seeLate(now)
	return s.effects
}

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// save wants the record as it is now stored at once.
func (s *State) save() {
	s.revision++
	s.emit(Persist{s.revision, s.snapshot()})
}

// reported takes a report over, unless it is older than what is known.
func (s *State) reported(e Reported, now time.Time) {
	if int(e.Slot) < 0 || int(e.Slot) >= len(s.slots) || e.Report.Generation > maxGeneration {
		return
	}
	m := &s.slots[e.Slot]
	switch {
	case s.Fenced(e.Pod.UID), s.isPast(e.Pod.UID):
		s.emit(Direct{})
		return
	case !m.known:
	case m.pod.UID == e.Pod.UID:
		if stale(&m.report, &e.Report) && !s.brought(e.Slot, &e.Report) {
			return
		}
	case s.takesOver(e.Pod, m.pod):
		s.past[m.pod.UID] = true
		*m = member{}
		s.ranked = nil
	default:
		s.emit(Direct{})
		return
	}
	if m.known && m.attached && reflect.DeepEqual(m.report, e.Report) {
		return // a word that it lives: time alone has passed
	}
	if known := &m.report; !m.known || !m.attached || known.Generation != e.Report.Generation || known.State != e.Report.State || known.Leaving != e.Report.Leaving {
		s.emit(Direct{})
	}
	if m.known && m.pod.UID == e.Pod.UID && ran(m.report.State) && e.Report.State == AgentIdle {
		m.restarted = true
	}
	if m.known && m.report.Generation == e.Report.Generation && m.report.WholeCommand && !e.Report.WholeCommand && e.Report.Ranks > 0 {
		m.launched = true
	}
	if !m.known {
		m.containers = s.containersAtFirst(&e.Report)
	}
	s.resumed(e.Pod, now)
	shown := m.known && m.attached && sameToPeople(&m.report, &e.Report)
	s.ranked, s.planned = nil, false
	m.known, m.attached, m.pod, m.report = true, true, e.Pod, e.Report
	if r := &e.Report; r.Generation > s.Record.Generation && !s.Final() {
		// The store lost a record: numbers that agents have seen are never used again.
		s.Record.Generation, s.Record.RestoreStep, s.layout = r.Generation, StepUnknown, nil
		s.Record.Phase = Running // until an agent says otherwise
		s.begun()
		s.save()
	}
	if e.Report.Generation == s.Record.Generation && ran(e.Report.State) {
		m.ran = true
	}
	if f := e.Report.FetchFailed; f != (Mark{}) && !slices.Contains(m.failed, f) {
		m.failed = append(m.failed, f)
	}
	s.keepExits(e.Slot)
	s.containerEnded(e.Slot, now)
	s.succeeded(e.Slot, now)
	s.leaving(e.Slot, now)
	s.track(now)
	if !shown {
		s.refresh(now)
	}
}

// sameToPeople says whether two reports differ in nothing that refresh looks at.
func sameToPeople(a, b *Report) bool {
	ready := func(r *Report) (n int) {
		for i := range r.Rank {
			if r.Rank[i].StandbyReady {
				n++
			}
		}
		return n
	}
	return slices.Equal(a.Notes, b.Notes) && ready(a) == ready(b) && a.Unprotected == b.Unprotected && a.WholeCommand == b.WholeCommand && (a.Ranks > 0) == (b.Ranks > 0)
}

func ran(a AgentState) bool { return a == AgentRunning || a == AgentFailed || a == AgentFinished }

// order of an agent's states within one generation and incarnation; it only rises.
func order(a AgentState) int {
	switch a {
	case AgentIdle:
		return 1
	case AgentRunning:
		return 2
	case AgentFinished:
		return 3
	case AgentFailed:
		return 4
	case AgentHalted:
		return 5
	case AgentUnknown:
	}
	return 0
}

// stale says whether a report of the same pod is older than the known one.
func stale(known, r *Report) bool {
	switch {
	case r.Incarnation != known.Incarnation:
		return r.Incarnation < known.Incarnation
	case r.Generation != known.Generation:
		return r.Generation < known.Generation
	case order(r.State) != order(known.State):
		return order(r.State) < order(known.State)
	}
	for i := range min(len(r.Rank), len(known.Rank)) {
		if newest(r.Rank[i].Sealed) < newest(known.Rank[i].Sealed) {
			return true
		}
	}
	return false
}

// keepExits remembers how ranks of the newest generation ended. A pod that has not been seen to run it
// tells of an older one, which is accounted for; where an earlier coordinator handed it out, the time of
// the exit says which one it was.
func (s *State) keepExits(slot Slot) {
	r := &s.slots[slot].report
	if r.Generation != s.Record.Generation || !s.slots[slot].ran && s.layout != nil {
		return
	}
	base := s.baseRank(slot)
	for _, k := range r.Rank {
		if k.Exit == nil || !s.slots[slot].ran && !k.Exit.At.After(s.accounted()) {
			continue
		}
		rank := base + k.Local
		s.exits[rank] = cause.Exit{Rank: rank, Slot: int(slot), Code: k.Exit.Code, Signal: k.Exit.Signal, At: k.Exit.At, Traceback: k.Exit.Traceback}
	}
}

// accounted is the time up to which exits belong to what the newest generation repaired.
func (s *State) accounted() time.Time {
	rec := s.lastRecovery()
	switch {
	case rec == nil:
		return time.Time{}
	case rec.Stop < 0:
		return rec.DetectedAt.Add(haltTime)
	}
	return rec.DetectedAt.Add(max(0, rec.Drain) + max(0, rec.Decide) + rec.Stop)
}

// baseRank is the rank of a slot's first local rank; pods of one gang ask for the same number of ranks
// where an earlier coordinator laid the generation out and not all slots are known.
func (s *State) baseRank(slot Slot) int {
	if s.layout != nil {
		return s.layout.base[slot]
	}
	return s.rank().base[slot]
}

// ranked is how ranks would be numbered by what pods have told, where no layout says it.
type ranked struct {
	base  []int
	world int
}

// rank counts once per event: it is asked for each slot.
func (s *State) rank() *ranked {
	if s.ranked != nil {
		return s.ranked
	}
	r := &ranked{base: make([]int, len(s.slots))}
	for i := range s.slots {
		r.base[i] = r.world
		r.world += s.ranks(Slot(i))
	}
	s.ranked = r
	return r
}

// advance does what the levels ask for, until nothing changes. Of a Job that is over people are owed the verdict, and nothing else.
func (s *State) advance(now time.Time) {
	for range 4 {
		before := s.Record.Phase
		if !s.Final() {
			s.trackMixed(now)
			if c := s.refusal(now); c != nil {
				s.refuse(c, now)
			}
		}
		switch {
		case s.Final():
			s.closing()
		case s.over, s.stored < s.Record.Generation:
		default:
			s.live(now)
		}
		if s.Record.Phase == before {
			return
		}
		s.emit(Direct{})
	}
}

func (s *State) live(now time.Time) {
	s.confirm(now)
	switch s.Record.Phase {
	case Forming:
		s.salvageDoomed(now)
		if s.salvaged() {
			s.commit()
		}
		s.ask()
		if s.waitsFor() != "" {
			return
		}
		s.gather(now)
		if s.gathered() {
			s.begin(now)
		}
	case Running:
		s.askOrphans()
		s.watch(now)
	case Halting:
		s.askOrphans()
		s.listen(now)
		if s.allHalted(now) {
			if s.haltedAt.IsZero() {
				s.haltedAt = now
			}
			if s.mayDepart(now) {
				return
			}
			s.salvageDoomed(now)
			if s.salvaged() {
				s.judge(now)
			}
		}
	case Finished, GivenUp:
	}
}

func (s *State) all(is func(*member) bool) bool {
	for i := range s.slots {
		if !is(&s.slots[i]) {
			return false
		}
	}
	return true
}

// allHalted: so is every pod, but for those that are left behind.
func (s *State) allHalted(now time.Time) bool {
	for i := range s.slots {
		if !s.halted(&s.slots[i]) && !s.out(Slot(i), now) {
			return false
		}
	}
	return true
}

// halted: every process of the newest generation on this pod is gone and its inventory is final.
func (s *State) halted(m *member) bool {
	return m.known && m.report.State == AgentHalted && m.report.Generation >= s.Record.Generation
}

// begin lays the next generation out; it is handed out once it is stored.
func (s *State) begin(now time.Time) {
	l := &layout{addr: s.slots[0].report.Address, port: s.slots[0].report.Port}
	inventories := make([][]int64, 0, len(s.slots))
	for i := range s.slots {
		m := &s.slots[i]
		l.pods = append(l.pods, m.pod.UID)
		l.incarnations = append(l.incarnations, m.report.Incarnation)
		l.base = append(l.base, l.world)
		l.world += m.report.Ranks
		inventories = append(inventories, inventory(&m.report)...)
	}
	restore, _ := RestorePoint(inventories)
	r := &s.Record
	rec := s.lastRecovery()
	if rec != nil && rec.Generation > r.Generation {
		if restore > 0 {
			rec.ResumedAt, rec.ResumeKnown, rec.StepsRecomputed = restore, true, max(0, rec.Reached-restore)
		}
		rec.Generation, rec.RestoreStep, rec.Ranks = r.Generation+1, restore, l.world
		if len(rec.Replaced) > 0 && !s.haltedAt.IsZero() {
			rec.Replace = max(0, s.readyAt.Sub(s.haltedAt))
		}
	}
	if restore == 0 && r.Progress.SavedStep > 0 {
		s.emit(Tell{Notice{Warning: true, Reason: NoticeRecovering, Message: "no step is left that all ranks hold, in memory or in storage: training starts from the beginning, or from the script's own checkpoint"}})
	}
	s.forget(restore)
	r.Generation++
	r.RestoreStep, r.Phase = restore, Running
	r.Progress.Ranks = l.world
	s.layout = l
	s.begun()
	s.common, s.frontier = restore, restore
	s.save()
}

// begun forgets what belonged to the generation before.
func (s *State) begun() {
	s.exits = map[int]cause.Exit{}
	s.suspect, s.runningSince, s.paceAt = nil, time.Time{}, time.Time{}
	s.common, s.frontier = 0, 0
	s.toldStep, s.counted = 0, counted{}
	s.Record.Progress.OptimizerSteps, s.Record.Progress.ResumedAt, s.Record.Progress.ResumeKnown = 0, 0, false
	s.drain, s.salvage, s.copying, s.fetching, s.fetched = nil, Mark{}, nil, plan{}, false
	s.unread = 0
	s.haltedAt, s.readyAt = time.Time{}, time.Time{}
	for i := range s.slots {
		s.slots[i].ran, s.slots[i].restarted, s.slots[i].launched = false, false, false
	}
}

// watch looks for a failure, or the end, of the newest generation.
func (s *State) watch(now time.Time) {
	g := s.Record.Generation
	failed := false
	for i := range s.slots {
		m := &s.slots[i]
		if !m.known {
			continue
		}
		if m.report.State == AgentFailed && m.report.Generation == g {
			failed = true
		} else if c := s.lost(Slot(i)); c != nil && s.suspect == nil {
			s.suspect = c
		}
	}
	halt := failed || s.suspect != nil
	switch c := s.doomCause(); {
	case c == nil:
		if s.drain != nil {
			s.drain = nil
			s.emit(Direct{})
		}
	case halt:
		s.drain = nil // what is done by now counts
		if s.suspect == nil || s.suspect.Code == cause.RanksLost || s.suspect.Code == cause.ContainerRestarted || s.doom(Slot(s.suspect.Slot)) != nil || s.suspect.Slot == c.Slot {
			s.suspect = c
		}
	default:
		s.advanceDrain(now)
		if s.drain.over {
			s.suspect, halt = c, true
		}
	}
	switch {
	case halt:
		s.Record.Phase, s.detected = Halting, now
		s.emit(Touch{})
	case s.all(func(m *member) bool { return m.known && m.report.State == AgentFinished && m.report.Generation == g }):
		s.conclude(Verdict{Reason: ReasonFinished, At: now}, Finished)
	case s.drain == nil:
		s.preserve(now)
	}
}

// lost says what is known if the ranks that a slot should run are gone without an exit.
func (s *State) lost(slot Slot) *cause.Cause {
	m, g := &s.slots[slot], s.Record.Generation
	r := &m.report
	c := &cause.Cause{Code: cause.RanksLost, Rank: s.baseRank(slot), Slot: int(slot)}
	halted := r.State == AgentHalted && r.Generation >= g
	idle := r.State == AgentIdle && r.Generation == g
	switch {
	case s.layout != nil && s.layout.pods[slot] != m.pod.UID:
		c.Code, c.Message = cause.PodLost, fmt.Sprintf("pod %s took the place of the pod that ran slot %d", m.pod.Name, slot)
	case s.layout == nil && r.Generation < g:
		c.Message = fmt.Sprintf("pod %s in slot %d does not run generation %d", m.pod.Name, slot, g)
	case halted && m.launched:
		c.Code, c.Message = cause.LauncherStarted, fmt.Sprintf("the command of pod %s in slot %d, which counted as one rank, has started a launcher", m.pod.Name, slot)
	case idle && (m.restarted || s.layout != nil && s.layout.incarnations[slot] != r.Incarnation):
		// An agent that comes back in the same container finds its ranks, or how they ended.
		c.Code, c.Message = cause.ContainerRestarted, restarted(m.pod, slot, g)
	case halted, idle && (m.ran || s.layout == nil || s.layout.incarnations[slot] != r.Incarnation):
		c.Message = fmt.Sprintf("pod %s in slot %d came back without the ranks of generation %d", m.pod.Name, slot, g)
	default:
		return nil
	}
	return c
}

// restarted says what is known of a container that ended whole.
func restarted(p Pod, slot Slot, generation int64) string {
	how, charged := "", ""
	if p.Restarted != "" {
		how = " (" + p.Restarted + ")"
	}
	if p.Charged != "" {
		charged = "; " + p.Charged
	}
	return fmt.Sprintf("the container of pod %s in slot %d ended whole%s and was started again without the ranks of generation %d%s", p.Name, slot, how, generation, charged)
}

// refusal is why the gang is given up for what its pods start: a launcher that cannot be honoured, or commands of two kinds
// for too long; nil: it is not.
func (s *State) refusal(now time.Time) *cause.Cause {
	for i := range s.slots {
		if m := &s.slots[i]; m.known && m.report.Refused != "" && s.doom(Slot(i)) == nil {
			return &cause.Cause{Code: cause.Code(ReasonRefused), Slot: i, ExitCode: refusedCode, Message: m.report.Refused}
		}
	}
	if !s.mixedSince.IsZero() && now.Sub(s.mixedSince) >= mixedPatience {
		return &cause.Cause{Code: cause.Code(ReasonRefused), ExitCode: refusedCode, Message: s.mixed()}
	}
	return nil
}

func (s *State) refuse(c *cause.Cause, now time.Time) {
	s.conclude(Verdict{Reason: ReasonRefused, ExitCode: c.ExitCode, Cause: c, At: now}, GivenUp)
}

// refusedCode is the exit code of a command line that cannot be used.
const refusedCode = 2

func (s *State) conclude(v Verdict, p Phase) {
	s.Record.Phase, s.Record.Verdict = p, &v
	s.save()
}

// closing carries a verdict out: the job makes no pods any more before agents are told to exit.
func (s *State) closing() {
	if s.Record.Phase == GivenUp && s.storedVerdict && !s.ended && !s.ending {
		s.ending = true
		s.emit(End{*s.Record.Verdict})
	}
}

// Snapshot is the record as it is now; it shares nothing with the state.
func (s *State) Snapshot() Record { return s.snapshot() }

func (s *State) snapshot() Record {
	r := s.Record
	r.Recoveries = slices.Clone(r.Recoveries)
	r.Progress.Attached = slices.Clone(r.Progress.Attached)
	r.Progress.Notes, r.Progress.Unprotected = slices.Clone(r.Progress.Notes), slices.Clone(r.Progress.Unprotected)
	r.Doomed, r.Copies, r.Moved = slices.Clone(r.Doomed), slices.Clone(r.Copies), slices.Clone(r.Moved)
	for i := range r.Recoveries {
		r.Recoveries[i].Replaced = slices.Clone(r.Recoveries[i].Replaced)
	}
	return r
}
