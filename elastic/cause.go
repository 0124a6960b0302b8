package elastic

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/replacements"
)

// cause returns the first cause that one of these candidates can name. exit is the rank that failed first; it is nil
// where no agent reported how a rank ended.
func (s *State) cause() cause.Cause {
	exit := s.firstExit()
	for _, candidate := range []func(exit *cause.Cause) *cause.Cause{s.terminatedPod, s.explained, s.exited} {
		if c := candidate(exit); c != nil {
			return *c
		}
	}
	return cause.Cause{Code: cause.RanksLost, Slot: -1, Rank: -1, Message: "no agent reported how a rank ended"}
}

func (s *State) firstExit() *cause.Cause {
	exits := make([]cause.Exit, 0, len(s.run.exits))
	for _, e := range s.run.exits {
		exits = append(exits, e)
	}
	if c, ok := cause.First(exits); ok {
		return &c
	}
	return nil
}

// followed returns c as the cause of the failure that exit belongs to as well.
func followed(c cause.Cause, exit *cause.Cause) *cause.Cause {
	if c.Cascade = 0; exit != nil {
		c.Cascade = exit.Cascade + 1
	}
	return &c
}

// terminatedPod returns the cause when a pod was terminated and its ranks ended before the gang was halted for it: they ended for
// that reason, and their peers' failures are a consequence.
func (s *State) terminatedPod(exit *cause.Cause) *cause.Cause {
	for _, d := range s.replacements.Uncommitted() {
		if m := s.members.At(d.Slot); !d.Dead && m.Pod().UID == d.Pod && s.endedWithPod(d.Slot, exit) {
			return followed(*d.Loss(s.baseRank(d.Slot)), exit)
		}
	}
	return nil
}

// explained returns what is known of lost pods and ranks, where that says more than an exit does.
func (s *State) explained(exit *cause.Cause) *cause.Cause {
	peer := cmp.Or(s.deadPeer(), s.restartedPeer())
	if exit != nil && exit.External() && exit.Suspect == "" {
		peer = nil // a kill is no script's word for a lost peer
	}
	known := cmp.Or(s.run.halting.suspect, peer)
	for i := 0; i < s.members.Len() && known == nil; i++ {
		if l := s.run.layout; l != nil && l.Pods[i] != s.members.At(Slot(i)).Pod().UID {
			known = s.lost(Slot(i))
		}
	}
	if known == nil ||
		exit != nil && !exit.Weak && peer == nil && !s.run.halting.ordered && !(known.Displaced() && s.replacements.For(Slot(exit.Slot)) != nil) {
		return nil
	}
	return followed(*known, exit)
}

// exited returns the exit itself. A kill in a terminating pod is the end of that pod.
func (s *State) exited(exit *cause.Cause) *cause.Cause {
	if exit != nil && exit.Code == cause.RestoreFailed && !s.canGiveUpStep() {
		c := *exit
		c.Code = cause.RankFailed
		return &c
	}
	if exit == nil || exit.Code != cause.RankKilled || !s.members.At(Slot(exit.Slot)).Report().Terminating {
		return exit
	}
	c := *exit
	c.Code, c.Message = cause.PodLost, "the pod is being shut down"
	return &c
}

// mayBeTerminating reports whether a pod has ended for a reason that the API server has not given yet: the agent's report may
// arrive before the pod's deletion. The next generation waits for that pod's successor anyway.
func (s *State) mayBeTerminating(now time.Time) bool {
	if now.Sub(s.run.halting.haltedAt) >= replacements.HaltTime {
		return false
	}
	exit := s.firstExit()
	for i := range s.members.Len() {
		if s.endedWithPod(Slot(i), exit) && s.replacements.For(Slot(i)) == nil {
			return true
		}
	}
	return false
}

// endedWithPod reports whether a terminating pod ended its ranks itself, or one of them was killed before any other rank failed.
func (s *State) endedWithPod(slot Slot, exit *cause.Cause) bool {
	m := s.members.At(slot)
	killed := exit != nil && exit.Slot == int(slot) && exit.Code == cause.RankKilled
	return m.EndedItself(s.Record.Generation) || killed && m.Known() && m.Report().Terminating
}

// deadPeer returns the cause when a dead pod ran the newest generation and no exit of its ranks was reported: the other
// ranks lost their peer, whatever their tracebacks say. Counting that as a failure of the script would end a gang that
// loses two nodes before its next step.
func (s *State) deadPeer() *cause.Cause {
	for _, d := range s.replacements.ToReplace() {
		if !d.Dead || !s.mayHaveRun(d) {
			continue
		}
		if !s.reportedExit(d.Slot) {
			return d.Loss(s.baseRank(d.Slot))
		}
	}
	return nil
}

// restartedPeer is deadPeer for a container whose processes all ended: the other ranks lost their peer.
func (s *State) restartedPeer() *cause.Cause {
	for i := range s.members.Len() {
		if g := s.Record.Generation; s.members.At(Slot(i)).RestartedIn(g) && !s.reportedExit(Slot(i)) {
			return s.restarted(Slot(i), g)
		}
	}
	return nil
}

// reportedExit reports whether an agent said that a rank of the slot ended badly.
func (s *State) reportedExit(slot Slot) bool {
	for _, e := range s.run.exits {
		if e.Slot == int(slot) && (e.Code != 0 || e.Signal != 0) {
			return true
		}
	}
	return false
}

// mayHaveRun reports whether a pod that is to be replaced ran the newest generation. Where an earlier coordinator
// started that generation, the pod's own report says so. A pod that we never heard from may already have been dead, so
// assume it ran.
func (s *State) mayHaveRun(d Termination) bool {
	if s.run.layout != nil {
		return s.run.layout.Pods[d.Slot] == d.Pod
	}
	m := s.members.At(d.Slot)
	return !m.Known() || m.Pod().UID == d.Pod && m.RanIn(s.Record.Generation)
}

// exitCode is what a launcher returns for a failure; never 0.
func exitCode(c cause.Cause) int {
	if c.ExitCode == 0 {
		return 1
	}
	return c.ExitCode
}
