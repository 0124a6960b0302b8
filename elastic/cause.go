package elastic

import (
	"cmp"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// cause is what came first of all that is known of the failure: the first of these that there is. exit is the rank that failed
// first, nil where no agent says how a rank ended.
func (s *State) cause() cause.Cause {
	exit := s.firstExit()
	for _, candidate := range []func(exit *cause.Cause) *cause.Cause{s.departed, s.explained, s.exited} {
		if c := candidate(exit); c != nil {
			return *c
		}
	}
	return cause.Cause{Code: cause.RanksLost, Slot: -1, Rank: -1, Message: "no agent says how a rank ended"}
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

// followed is c as the cause of the failure that exit tells of as well.
func followed(c cause.Cause, exit *cause.Cause) *cause.Cause {
	if c.Cascade = 0; exit != nil {
		c.Cascade = exit.Cascade + 1
	}
	return &c
}

// departed is what a pod explains that had to go while no coordinator was there, and ended its ranks itself: how these ended, and that
// the others lost them.
func (s *State) departed(exit *cause.Cause) *cause.Cause {
	for _, d := range s.pendingDooms() {
		if m := &s.slots[d.Slot]; !d.Dead && m.pod.UID == d.Pod && s.left(m) {
			return followed(*s.lossOf(d), exit)
		}
	}
	return nil
}

// explained is what is known of lost pods and ranks, where it says more than an exit.
func (s *State) explained(exit *cause.Cause) *cause.Cause {
	peer := cmp.Or(s.deadPeer(), s.restartedPeer())
	if exit != nil && exit.External() && exit.Suspect == "" {
		peer = nil // a kill is no script's word for a lost peer
	}
	known := cmp.Or(s.run.halting.suspect, peer)
	for i := 0; i < len(s.slots) && known == nil; i++ {
		if l := s.run.layout; l != nil && l.pods[i] != s.slots[i].pod.UID {
			known = s.lost(Slot(i))
		}
	}
	if known == nil || exit != nil && !exit.Weak && peer == nil && !(known.Displaced() && s.doom(Slot(exit.Slot)) != nil) {
		return nil
	}
	return followed(*known, exit)
}

// exited is the exit itself. A kill in a pod that is being shut down is that pod's end.
func (s *State) exited(exit *cause.Cause) *cause.Cause {
	if exit == nil || exit.Code != cause.RankKilled || !s.slots[exit.Slot].report.Leaving {
		return exit
	}
	c := *exit
	c.Code, c.Message = cause.PodLost, "the pod is being shut down"
	return &c
}

// left says whether a pod that was told to go has ended its ranks without an order to halt.
func (s *State) left(m *member) bool {
	t := &m.report.Timeline
	return m.known && m.report.Leaving && s.halted(m) && !t.HaltReceived.After(t.RunReceived)
}

// mayDepart: this coordinator has only begun, and nobody has told it yet whether a pod that left its ranks had to.
func (s *State) mayDepart(now time.Time) bool {
	if now.Sub(s.beganAt) >= haltTime {
		return false
	}
	for i := range s.slots {
		if s.left(&s.slots[i]) && s.doom(Slot(i)) == nil {
			return true
		}
	}
	return false
}

// deadPeer is what a dead pod explains that ran the newest generation and of whose ranks no exit was told: that the
// others lost it, in whatever words their scripts say so. To take that for a failure of theirs would end a gang
// that loses two nodes before its next step.
func (s *State) deadPeer() *cause.Cause {
	for _, d := range s.toReplace() {
		if !d.Dead || !s.mayHaveRun(d) {
			continue
		}
		if !s.toldExit(d.Slot) {
			return s.lossOf(d)
		}
	}
	return nil
}

// restartedPeer is what a container explains that ended whole and of whose ranks no exit was told, as deadPeer: the others lost them.
func (s *State) restartedPeer() *cause.Cause {
	for i := range s.slots {
		if g := s.Record.Generation; s.slots[i].restartedIn == g && !s.toldExit(Slot(i)) {
			return s.restarted(Slot(i), g)
		}
	}
	return nil
}

// toldExit says whether an agent told that a rank of a slot ended badly.
func (s *State) toldExit(slot Slot) bool {
	for _, e := range s.run.exits {
		if e.Slot == int(slot) && (e.Code != 0 || e.Signal != 0) {
			return true
		}
	}
	return false
}

// mayHaveRun says whether a doomed pod ran the newest generation. Where an earlier coordinator handed it out, one that was
// heard here says so itself, and of one that never was its death may be why.
func (s *State) mayHaveRun(d Doom) bool {
	if s.run.layout != nil {
		return s.run.layout.pods[d.Slot] == d.Pod
	}
	m := &s.slots[d.Slot]
	return !m.known || m.pod.UID == d.Pod && s.ranIt(m)
}

// exitCode is what a launcher returns for a failure; never 0.
func exitCode(c cause.Cause) int {
	if c.ExitCode == 0 {
		return 1
	}
	return c.ExitCode
}
