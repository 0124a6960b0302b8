package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// stepFinal carries a verdict out: the job makes no pods any more before agents are told to exit.
func (s *State) stepFinal() {
	if s.Record.Phase == GivenUp && s.storedVerdict && !s.ended && !s.ending {
		s.ending = true
		s.emit(End{*s.Record.Verdict})
	}
}

// carriedOut: the verdict is stored, and nothing makes pods of the job any more.
func (s *State) carriedOut() bool {
	return s.storedVerdict && (s.Record.Phase == Finished || s.ended)
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
	s.becomeFinal(Verdict{Reason: ReasonRefused, ExitCode: c.ExitCode, Cause: c, At: now}, GivenUp)
}

// refusedCode is the exit code of a command line that cannot be used.
const refusedCode = 2
