package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

const (
	// conflictsInARow is how many generations port conflicts may cost before they count as failures.
	conflictsInARow = 5
	// keptRecoveries bounds Record.Recoveries, keptMessage the message of each; keptReplaced bounds the pods that
	// each but the newest tells of. All of it must fit into one object of the API server, also for a gang of a
	// thousand pods of which all were replaced again and again.
	keptRecoveries = 20
	keptReplaced   = 16
	keptMessage    = 700
)

// judge finds the cause of the failure that ended the newest generation, and decides whether another
// one is worth it.
//
//   - A port conflict costs a generation and is no failure, unless it comes again and again.
//   - A failure of the script (an exception, an exit code, a crash) that is seen for the second time with
//     no progress between (none that is sure) is a bug in the script.
//   - A pod that had to leave its node costs a generation and is no failure; Replacements counts it.
//   - What comes from outside (kill, lost pod) says nothing about the script; it ends a gang only after
//     many restarts without progress.
//   - Nor does what hardware may be to blame for; before it ends a gang, the pod first at fault moves (suspect.go).
//
// What counts as progress stands in progress.go.
func (s *State) judge(now time.Time) {
	c := s.cause()
	r := &s.Record
	s.credit()
	free := false
	if c.Code == cause.PortConflict {
		s.conflicts++
		free = s.conflicts <= conflictsInARow
	} else {
		s.conflicts = 0
		free = c.Displaced()
	}
	if !free {
		reason := Reason("")
		switch {
		case s.shouldMove(c):
			s.move(c, now)
		case !c.External() && s.seenBefore(c):
			reason = ReasonSameFailureTwice
		case r.WithoutProgress >= restartsWithoutProgress:
			reason = ReasonNoProgress
		}
		if reason != "" {
			s.becomeFinal(Verdict{Reason: reason, ExitCode: exitCode(c), Cause: &c, At: now}, GivenUp)
			return
		}
		r.WithoutProgress++
		r.Restarts++
	}
	s.open(c)
	s.becomeForming()
	if c.Code == cause.JobSuspended {
		s.save() // the pods go; nobody else will know why
	}
}

// exitCode is what a launcher returns for a failure; never 0.
func exitCode(c cause.Cause) int {
	if c.ExitCode == 0 {
		return 1
	}
	return c.ExitCode
}

// cause is what came first: an exit that speaks for itself, else what is known of lost pods, else the
// best exit there is.
func (s *State) cause() cause.Cause {
	exits := make([]cause.Exit, 0, len(s.run.exits))
	for _, e := range s.run.exits {
		exits = append(exits, e)
	}
	c, ok := cause.First(exits)
	if left := s.departed(); left != nil {
		left.Cascade = c.Cascade
		if ok {
			left.Cascade++
		}
		return *left
	}
	peer := s.deadPeer()
	if ok && c.External() && c.Suspect == "" {
		peer = nil // a kill is no script's word for a lost peer
	}
	if s.run.halting.suspect == nil {
		s.run.halting.suspect = peer
	}
	for i := 0; i < len(s.slots) && s.run.halting.suspect == nil; i++ {
		if s.run.layout != nil && s.run.layout.pods[i] != s.slots[i].pod.UID {
			s.run.halting.suspect = s.lost(Slot(i))
		}
	}
	switch {
	case s.run.halting.suspect != nil && (!ok || c.Weak || peer != nil || s.run.halting.suspect.Displaced() && s.doom(Slot(c.Slot)) != nil):
		known := *s.run.halting.suspect
		known.Cascade = c.Cascade
		if ok {
			known.Cascade++
		}
		return known
	case !ok:
		return cause.Cause{Code: cause.RanksLost, Slot: -1, Rank: -1, Message: "no agent says how a rank ended"}
	}
	if c.Code == cause.RankKilled && s.slots[c.Slot].report.Leaving {
		c.Code, c.Message = cause.PodLost, "the pod is being shut down"
	}
	return c
}

// departed is what a pod explains that had to go while no coordinator was there, and ended its ranks itself: how these ended, and that
// the others lost them.
func (s *State) departed() *cause.Cause {
	for _, d := range s.pendingDooms() {
		if m := &s.slots[d.Slot]; !d.Dead && m.pod.UID == d.Pod && s.left(m) {
			return s.lossOf(d)
		}
	}
	return nil
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
		told := false
		for _, e := range s.run.exits {
			told = told || e.Slot == int(d.Slot) && (e.Code != 0 || e.Signal != 0)
		}
		if !told {
			return s.lossOf(d)
		}
	}
	return nil
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

// seenBefore says whether the same failure was repaired since the last progress that is sure.
func (s *State) seenBefore(c cause.Cause) bool {
	left := s.Record.WithoutProgress + s.Record.Unproven
	for i := len(s.Record.Recoveries) - 1; i >= 0 && left > 0; i-- {
		old := s.Record.Recoveries[i].Cause
		if old.Code == cause.PortConflict || old.Displaced() {
			continue
		}
		short := c
		short.Message = cause.Tail(c.Message, keptMessage)
		if cause.Same(old, short) {
			return true
		}
		left--
	}
	return false
}

// open begins the account of a recovery; begin and track complete it.
func (s *State) open(c cause.Cause) {
	s.keepPace()
	s.settle(s.run.halting.detected, false)
	c.Message = cause.Tail(c.Message, keptMessage)
	r := &s.Record
	reached, known := s.reached()
	at := s.run.halting.detected
	if first := s.firstDetection(); !first.IsZero() {
		at = first
	}
	drained := NotReached
	if s.run.drain != nil && s.run.drain.hold > 0 {
		at, drained = s.run.drain.since, s.run.halting.detected.Sub(s.run.drain.since)
	}
	for i := range r.Recoveries {
		r.Recoveries[i].Replaced = shortened(r.Recoveries[i].Replaced)
	}
	r.Recoveries = append(r.Recoveries, Recovery{
		Generation: r.Generation + 1, Cause: c, DetectedAt: at,
		Decide: NotReached, Stop: NotReached, Start: NotReached, Restore: NotReached, FirstStep: NotReached,
		Drain: drained, Replace: NotReached, Fetch: NotReached,
		EndedAfter: s.run.counted.most, Reached: reached, ReachedKnown: known,
	})
	if n := len(r.Recoveries) - keptRecoveries; n > 0 {
		r.Recoveries = slices.Delete(r.Recoveries, 0, n)
	}
	s.emit(Tell{Notice{Warning: true, Reason: NoticeRecovering, Message: recovering(r.Generation, c)}})
}

// shortened leaves out pods whose replacement is over, beyond the first keptReplaced: their own label fences them.
func shortened(all []Replacement) []Replacement {
	if len(all) <= keptReplaced {
		return all
	}
	kept := slices.Clone(all[:keptReplaced])
	for _, o := range all[keptReplaced:] {
		if o.ReleasedAt.IsZero() || o.AttachedAt.IsZero() {
			kept = append(kept, o)
		}
	}
	return kept
}

// firstDetection is when the first agent saw the failure, by its clock.
func (s *State) firstDetection() time.Time {
	first := time.Time{}
	for i := range s.slots {
		m := &s.slots[i]
		if at := m.report.Timeline.Detected; m.known && m.report.Generation == s.Record.Generation && !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
