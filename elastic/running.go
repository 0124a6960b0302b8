package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// stepRunning goes on with a generation that was handed out, and looks for its failure, its end, and pods that must go.
func (s *State) stepRunning(now time.Time) {
	s.requestOrphans()
	if s.branching() {
		s.haltForBranch(now)
		return
	}
	s.handOutAgain()
	failed, suspect := s.failure()
	pending, ordered := s.terminationCause(), false
	switch {
	case failed:
		if pending != nil {
			s.run.drain = nil // what is done by now counts
			if suspect == nil || suspect.Code == cause.RanksLost || suspect.Code == cause.StartInterrupted ||
				suspect.Code == cause.ContainerRestarted || s.replacements.For(Slot(suspect.Slot)) != nil ||
				suspect.Slot == pending.Slot {
				suspect = pending
			}
		}
	case pending != nil:
		s.advanceDrain(now)
		failed, suspect, ordered = s.run.drain.over, pending, true
	}
	if pending == nil && s.run.drain != nil {
		s.run.drain = nil
		s.emit(Broadcast{})
	}
	switch {
	case failed:
		s.becomeHalting(suspect, ordered, now)
	case s.allFinished():
		s.becomeFinal(Verdict{Reason: ReasonFinished, At: now}, Finished)
	case s.run.drain == nil:
		s.preserve(now)
	}
}

// missedFirst reports whether the pod's whole command is in its first run but never joined a generation: the earlier
// coordinator stopped before its order arrived. Only true while no pod of the gang was replaced or seen running since;
// halting now would end the commands of all pods.
func (s *State) missedFirst(m *members.Member) bool {
	r, never := m.Report(), s.account.StartedAt().IsZero() && s.account.Restarts() == 0 && s.Record.Generation == 1 &&
		!s.members.AnySuperseded()
	return m.Known() && never && s.run.layout == nil && r.WholeCommand && r.Generation == 0 && r.Containers <= 1 && len(r.Rank) == 1 &&
		r.Rank[0].Exit == nil
}

// handOutAgain hands the first generation out to pods that missed it, once it is known that all others run it.
func (s *State) handOutAgain() {
	missed := false
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		switch {
		case s.missedFirst(m) && m.Attached() && !m.Report().Terminating:
			missed = true
		case !m.Known() || !m.Report().WholeCommand || !m.Current(s.Record.Generation) || !members.Ran(m.Report().State):
			return
		}
	}
	if missed {
		s.run.layout = s.members.LayOut()
		s.emit(Broadcast{})
	}
}

// failure says whether the newest generation has failed on some pod, and what is known of ranks that are gone without an exit.
func (s *State) failure() (failed bool, lost *cause.Cause) {
	for i := range s.members.Len() {
		m := s.members.At(Slot(i))
		switch {
		case !m.Known():
		case m.Report().State == protocol.StateFailed && m.Report().Generation == s.Record.Generation:
			failed = true
		case lost == nil:
			lost = s.lost(Slot(i))
		}
	}
	return failed || lost != nil, lost
}

// allFinished: all ranks of the newest generation have ended with exit code 0.
func (s *State) allFinished() bool {
	for i := range s.members.Len() {
		if !s.members.At(Slot(i)).Finished(s.Record.Generation) && !s.left(Slot(i)) {
			return false
		}
	}
	return true
}

// lost says what is known if the ranks that a slot should run are gone without an exit.
func (s *State) lost(slot Slot) *cause.Cause {
	m, g := s.members.At(slot), s.Record.Generation
	r := m.Report()
	c := &cause.Cause{Code: cause.RanksLost, Rank: s.baseRank(slot), Slot: int(slot)}
	halted := r.State == protocol.StateHalted && r.Generation >= g
	idle := r.State == protocol.StateIdle && r.Generation == g
	switch {
	case s.left(slot):
		return nil
	case s.run.layout != nil && s.run.layout.Pods[slot] != m.Pod().UID:
		c.Code, c.Message = cause.PodLost, fmt.Sprintf("pod %s took the place of the pod that ran slot %d", m.Pod().Name, slot)
	case s.missedFirst(m):
		return nil
	case s.run.layout == nil && r.Generation < g && (r.Generation > 0 || !s.account.RanOnAll(g)):
		c.Code, c.Message = cause.StartInterrupted, fmt.Sprintf("the controller changed before pod %s in slot %d had started generation %d", m.Pod().Name, slot, g)
	case s.run.layout == nil && r.Generation < g:
		c.Message = fmt.Sprintf("pod %s in slot %d does not run generation %d", m.Pod().Name, slot, g)
	case halted && members.LeftForLauncher(r, s.Record.Generation):
		c.Code, c.Message = cause.LauncherStarted, fmt.Sprintf("the command of pod %s in slot %d is no longer one rank: a launcher has started, or is expected", m.Pod().Name, slot)
	case (idle || halted) && m.RestartedIn(g), idle && s.run.layout != nil && s.run.layout.Incarnations[slot] != r.Incarnation:
		// An agent that comes back in the same container finds its ranks, or how they ended.
		c = s.restarted(slot, g)
	case halted, idle && (m.RanIn(s.Record.Generation) || s.run.layout == nil || s.run.layout.Incarnations[slot] != r.Incarnation):
		c.Message = fmt.Sprintf("pod %s in slot %d came back without the ranks of generation %d", m.Pod().Name, slot, g)
	default:
		return nil
	}
	return c
}

// restarted is what is known of a container that ended whole.
func (s *State) restarted(slot Slot, generation int64) *cause.Cause {
	p, how, charged := s.members.At(slot).Pod(), "", ""
	if p.Restarted != "" {
		how = " (" + p.Restarted + ")"
	}
	if p.Charged != "" {
		charged = "; " + p.Charged
	}
	return &cause.Cause{Code: cause.ContainerRestarted, Rank: s.baseRank(slot), Slot: int(slot),
		Message: fmt.Sprintf("the container of pod %s in slot %d ended%s and was started again without the ranks of generation %d%s", p.Name, slot, how, generation, charged)}
}
