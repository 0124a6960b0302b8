package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// stepFinal carries out a verdict: the job creates no more pods before agents are ordered to exit.
func (s *State) stepFinal() {
	if s.Record.Phase == GivenUp && s.verdictStored() && !s.ended && !s.ending {
		s.ending = true
		s.emit(End{*s.Record.Verdict})
	}
}

// carriedOut reports whether the verdict is stored and the job creates no more pods.
func (s *State) carriedOut() bool {
	return s.verdictStored() && (s.Record.Phase == Finished || s.ended)
}

// verdictStored reports whether the store has the verdict.
func (s *State) verdictStored() bool { return s.Final() && s.storedRevision >= s.verdictRevision }

// refusal returns why the gang is given up because of its pods' commands: a launcher that is refused, or commands that were mixed for too
// long; nil otherwise.
func (s *State) refusal(now time.Time) *cause.Cause {
	mixed := s.members.NoteMixed(s.generation.Number, s.replacements.Leaves, now)
	for slot, m := range s.members.Each {
		if m.Known() && m.Report().Refused != "" && s.replacements.For(slot) == nil {
			return &cause.Cause{Code: cause.Code(ReasonRefused), Slot: int(slot), ExitCode: protocol.ExitRefused, Message: m.Report().Refused}
		}
	}
	if mixed {
		return &cause.Cause{Code: cause.Code(ReasonRefused), ExitCode: protocol.ExitRefused, Message: s.members.Mixed(s.replacements.Leaves)}
	}
	return nil
}
