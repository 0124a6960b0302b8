package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// stepForming waits until every slot has an agent that can start the next generation, and begins it.
func (s *State) stepForming(now time.Time) {
	if f := s.run.forming; f.since.IsZero() {
		f.since = now
	}
	s.drained(s.drain.AdvanceHalted(now))
	if s.drain.HaltedOver() {
		s.commit()
	}
	if s.storedRevision >= s.revision {
		s.request(s.replacements.RequestCommitted())
	}
	s.choose(now)
	s.seekRoom(now)
	if s.waitsFor() != "" || !s.ledger.LineStored() {
		return
	}
	s.gather(now)
	if !s.gathered() {
		return
	}
	s.advanceCheck(now)
	if !s.Final() && s.checkOver() {
		s.withdrawCheck(now)
		s.begin()
	}
}

// begin begins the next generation; agents receive it once it is stored.
func (s *State) begin() {
	was := s.generation.Out()
	from := s.generation.Begin(s.run.forming.haltedAt, s.run.forming.readyAt)
	if from.Step == 0 && s.account.Figures().SavedStep > 0 {
		s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeRecovering, Message: "no step is available to all ranks, in memory or in storage: training starts from the beginning, or from the script's own checkpoint"}})
	}
	s.sizes.noteParts(len(was), len(s.generation.Out()), s.account.StartedAt(), s.now)
	s.announceSize(was)
	s.noteLostAgain()
	s.becomeRunning()
	s.save()
}

// waitsFor returns, for users, what the next generation waits for; "": nothing. A step that ranks failed to restore is restored again after
// a pause.
func (s *State) waitsFor() string {
	if f := s.run.forming; f != nil && s.sizes.Min > 0 && f.decision.Waits() {
		return f.decision.Why
	}
	if s.sizes.Min <= 0 && s.members.Elastic() {
		return "waits for the least number of pods of the job, which this coordinator has not read yet"
	}
	if why := s.replacements.WaitsFor(s.generation.Number); why != "" {
		return why
	}
	if f := s.run.forming; f != nil && s.account.RestoresAgain(s.generation.Number) && !s.generation.Branching() {
		if at := f.since.Add(restorePause); s.now.Before(at) {
			return fmt.Sprintf("waits until %s to restore step %d again, which failed", at.UTC().Format(time.TimeOnly), s.generation.RestoreStep)
		}
	}
	return s.members.Mixed(s.replacements.Leaves)
}

// fetchReason returns, for users, what a generation waits for once all pods are ready.
func (s *State) fetchReason() string {
	if why := s.unreadable(); why != "" {
		return why
	}
	if len(s.run.forming.fetching.Fetch) == 0 {
		return ""
	}
	for slot, m := range s.members.Each {
		if s.run.forming.fetching.Fetch[int(slot)] != (protocol.Mark{}) && !m.Report().Storage {
			return fmt.Sprintf("waits for storage in pod %s of slot %d, to read step %d", m.Pod().Name, slot, s.run.forming.fetching.Step)
		}
	}
	return fmt.Sprintf("fetches step %d from storage for %d of %d pods", s.run.forming.fetching.Step, len(s.run.forming.fetching.Fetch), s.members.Parts())
}

// unreadable returns which recorded step cannot be read, by which pod, and the remedy; "": all can be read or an older step is available.
func (s *State) unreadable() string {
	const anew = "create the job again, which starts without that step"
	if s.Record.Phase != Forming || s.run.forming.readyAt.IsZero() {
		return "" // no pod had to fetch it
	}
	if d, durable := s.ledger.Newest(); s.run.forming.fetching.Step == 0 && durable {
		what := fmt.Sprintf("%s: step %d of generation %d is in storage", NoticeStepUnreadable, d.Step, d.Generation)
		if n := s.generation.WorldOf(d.Generation); n != s.members.World() {
			return fmt.Sprintf("%s for %d ranks, and the gang has %d; set it back to that number, or %s", what, n, s.members.World(), anew)
		}
		if s.generation.RestoreStep == StepUnknown {
			return fmt.Sprintf("%s, older than the lost record, and pods hold steps of the same age that may belong to another line of training; delete these pods, so that all read it from storage, or %s", what, anew)
		}
		return fmt.Sprintf("%s, and an agent of this gang is too old to fetch it; delete the gang's pods, so that they get the present agent, or %s", what, anew)
	}
	for slot, m := range s.members.Each {
		mark := s.run.forming.fetching.Fetch[int(slot)]
		if mark != (protocol.Mark{}) && m.FailedFetch(mark) {
			return fmt.Sprintf("%s: pod %s of slot %d cannot read step %d of generation %d from storage, and no other step is available to all ranks; retrying; make its file readable, or %s",
				NoticeStepUnreadable, m.Pod().Name, slot, mark.Step, mark.Generation, anew)
		}
	}
	return ""
}

// announceUnreadable emits an event once per step.
func (s *State) announceUnreadable() {
	why := s.unreadable()
	if why == "" || s.run.forming.unread == s.run.forming.fetching.Step+1 {
		return
	}
	s.run.forming.unread = s.run.forming.fetching.Step + 1
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeStepUnreadable, Message: why[len(NoticeStepUnreadable)+2:]}})
}
