package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/waiting"
)

// What is done about a gang that stands still, if the job's setting is HangAct:
//
//	| verdict              | ended after a time without a step of                                               | then             |
//	|----------------------|------------------------------------------------------------------------------------|------------------|
//	| Hang                 | the limit of package quiet, and three looks; deviceWork for a device or a backward | restart, move    |
//	| FabricHang           | fabricRetries; deviceWork if a rank waits for its device                           | restart, move    |
//	| WaitsOutside         | waitsOutside                                                                       | restart          |
//	| StorageStalls        | storageStalls                                                                      | restart          |
//	| Desync               | fabricRetries                                                                      | as a failure     |
//	| Deadlock, EndedEarly | the limit of package quiet, and three looks                                        | as a failure     |
//	| Busy, Unexplained    | never                                                                              |                  |
//	| each but Stopped     | Supervision.Timeout, if that is set and shorter                                    | restart          |
//
// Each time but the last is three times the longest silence that ended by itself, if that is longer, and counts from the last look at
// which a rank worked or had a phase open, if there was one. Hang and FabricHang end nothing before beforeFirst if no rank has made a step
// of its own in the generation.
//
// Restart: the ranks restart in place; it spends no restart. Move: the second time without progress in between, the pod that all others
// wait for moves to another node, once per job. A third time is only reported, until there is progress: a gang that stands still is never
// given up for that. As a failure: a bug of the script, which ends the gang if it repeats (budget.go).
//
// A rank that was not looked at may be the one that all others wait for. So no verdict ends anything if looks at a rank are missing, or if
// a rank without stack and recorder hides what it is in. Supervision.Timeout is the user's own word: it also holds then, as long as one
// rank was looked at. If none was, nothing is known of the gang.
//
// Time in which an agent was not connected counts for none of these times: the same outage may have kept the ranks from a step. Only for
// Supervision.Timeout it counts while some agents are connected and others are not.
const (
	// fabricRetries: NCCL and the network's adapters retry for less time.
	fabricRetries = 2 * time.Minute
	// deviceWork is how long a rank may wait for its own device or its backward pass: long kernels show no sign of life.
	deviceWork = 5 * time.Minute
	// beforeFirst is how long the first step of a generation may take: caches are cold, and no gap between steps is known.
	beforeFirst = 15 * time.Minute
	// waitsOutside is how long ranks may wait for something that is not theirs; waitsOutsideDear is that time if no state is in memory, so
	// that more is lost if the wait would have ended.
	waitsOutside, waitsOutsideDear = 5 * time.Minute, 15 * time.Minute
	// longestFactor: what waited for so long before may wait longer.
	longestFactor = 3
	// storageStalls is how long file systems of several nodes may not answer: they fail over, and a restart reads from them again.
	storageStalls = 30 * time.Minute
)

// stillTimeout returns the time without a step after which a verdict ends the generation; ends is false if it never does.
func (s *State) stillTimeout(v waiting.Verdict) (d time.Duration, ends bool) {
	switch v.Kind {
	case waiting.Hang, waiting.FabricHang:
		switch {
		case !s.stepped():
			d = beforeFirst
		case v.Slow:
			d = deviceWork
		case v.Kind == waiting.FabricHang:
			d = fabricRetries
		}
	case waiting.Desync:
		d = fabricRetries
	case waiting.Deadlock, waiting.EndedEarly:
	case waiting.WaitsOutside:
		d = waitsOutside
		if !s.members.All(func(m *members.Member) bool { return m.Report().StateBytes > 0 }) {
			d = waitsOutsideDear
		}
	case waiting.StorageStalls:
		d = storageStalls
	case waiting.Busy, waiting.Unexplained, waiting.Stopped:
		return 0, false
	}
	return max(d, longestFactor*s.quiet.Longest()), true
}

// stepped reports whether some rank has made a step of its own in the newest generation: ranks that only evaluate never do.
func (s *State) stepped() bool {
	return !s.members.All(func(m *members.Member) bool { return !m.Stepped(s.generation.Number, s.generation.RestoreStep) })
}

// endStill decides to end the generation if the verdict on its silence says so.
func (s *State) endStill(v waiting.Verdict, now time.Time) {
	if s.supervision.Hang != HangAct {
		return
	}
	silent := s.quiet.Seen(now)
	if n := s.attached(); n > 0 && n < s.members.Parts() { // an agent that is gone must not prevent the user's limit for ever
		silent = now.Sub(s.quiet.Since())
	}
	after, ends := s.stillTimeout(v)
	c := s.stillCause(v)
	switch timeout := s.supervision.Timeout; {
	case ends && v.Seen() && s.stood(now) >= after:
	case timeout > 0 && silent >= timeout && v.Kind != waiting.Stopped && v.Compared > 0:
		c = cause.Cause{
			Code: cause.HangTimeout, Rank: -1, Slot: -1,
			Message: fmt.Sprintf("no step for %s, and holdfast.dev/hang-timeout is %s: %s", silent.Round(time.Second), timeout, describe(v)),
		}
	default:
		return
	}
	if why := s.keepsStill(c); why != "" {
		if !s.run.still.declined {
			s.run.still.declined = true
			s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeStandsStill, Message: "is only reported: " + why}})
		}
		return
	}
	if s.run.still.keeping.number == 0 {
		s.keep(now)
	}
	s.run.still.keeping.ends = &c
}

// attached returns the number of agents that are connected.
func (s *State) attached() (n int) {
	for _, m := range s.members.Each {
		if m.Attached() {
			n++
		}
	}
	return n
}

// keepsStill returns why ranks that stand still are not ended; "": they are.
func (s *State) keepsStill(c cause.Cause) string {
	if ended := s.generation.Ended(c); ended != nil {
		return "some pods have ended with exit code 0, and the gang cannot run again without them"
	}
	if !c.Still() {
		return ""
	}
	if left, limited := s.restartsLeft(); limited && left <= 0 {
		return "the job's limit of restarts is reached"
	}
	if s.account.HangsLeft(s.generation.Cost(), s.quiet.Since()) <= 0 {
		return "its ranks were restarted for that before, without progress since"
	}
	return ""
}

// stillCause returns the cause of the end of a generation for a verdict.
func (s *State) stillCause(v waiting.Verdict) cause.Cause {
	c := cause.Cause{Code: cause.Code(v.Kind), Rank: -1, Slot: -1, Message: fmt.Sprintf("%s: %s", v.Kind.Meaning(), v.Text)}
	if !c.Still() { // cause.Same compares the last line
		c.Message = c.Message + "\n" + cause.Cut(v.Signature, waiting.MaxText/2)
		return c
	}
	slots := []int{}
	for _, r := range v.Culprits {
		slots = append(slots, s.slotOf(r))
	}
	if len(slots) == 0 {
		return c
	}
	c.Rank, c.Slot = v.Culprits[0], slots[0]
	if one := len(slices.Compact(slots)) == 1; one && (v.Kind == waiting.Hang || v.Kind == waiting.FabricHang) {
		c.Suspect = cause.SuspectHang
	}
	return c
}

// slotOf returns the slot that runs a rank.
func (s *State) slotOf(rank int) int {
	for slot := range s.members.Each {
		if base := s.generation.BaseRank(slot); rank >= base && rank < base+s.members.Ranks(slot) {
			return int(slot)
		}
	}
	return -1
}

// restartStill counts the restart of ranks that stood still, and moves the pod that is suspected again.
func (s *State) restartStill(c cause.Cause, now time.Time) {
	if again := s.account.NoteHang(); again && s.canMove(c) && s.generation.SurvivesWithout(s.members.AtFault(c)) {
		s.move(c, now)
	}
}

// stood returns for how long ranks were seen to stand still: since the last sign of life, or since a rank was last seen at work or in a
// phase.
func (s *State) stood(now time.Time) time.Duration { return s.quiet.Seen(now) - s.run.still.worked }

// stoodSince returns since when ranks may have stood still: the last sign of life, or the last look at which a rank had a phase open.
func (s *State) stoodSince() time.Time {
	if phase := s.run.still.phase; phase.After(s.quiet.Since()) {
		return phase
	}
	return s.quiet.Since()
}

// stillSince returns since when the ranks of a generation that is about to be ended stand still; zero: they do not.
func (s *State) stillSince(suspect generation.Suspect) time.Time {
	if s.run.still.reported && s.run.still.said.Kind.Stands() || suspect.Cause != nil && suspect.Code == cause.HangTimeout {
		return s.stoodSince()
	}
	return time.Time{}
}
