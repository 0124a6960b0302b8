package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/members"
)

// Agents keep files for users about ranks that stand still: what each rank is in, and the whole record of its collectives. Directive.Keep
// requests them once for each verdict that is reported, and before a generation is ended for a verdict that is not. Ranks are ended only
// after all agents have answered, or after keepFor. A coordinator that succeeds another one requests them again for
// another verdict, or before it ends the ranks.

// keepFor is how long the end of ranks that stand still is delayed at most. An agent asks its ranks for one second, and on a busy node
// begins late.
const keepFor = 4 * time.Second

// keeping is what agents keep of the present silence.
type keeping struct {
	// number is the look whose verdict the files belong to; 0: none is requested. at is when they were requested.
	number int64
	at     time.Time
	// ends is the cause of an end that is decided, and delayed for the files; nil: none.
	ends *cause.Cause
}

// keep requests files that belong to the newest look.
func (s *State) keep(now time.Time) {
	s.run.still.keeping = keeping{number: s.quiet.Wanted(), at: now}
	s.emit(Broadcast{})
}

// kept reports whether all agents have answered.
func (s *State) kept() bool {
	number := s.run.still.keeping.number
	return s.members.All(func(m *members.Member) bool { return m.Known() && m.Report().Kept >= number })
}

// endKept ends the generation, if that is decided and need not be delayed any longer.
func (s *State) endKept(now time.Time) {
	k := &s.run.still.keeping
	if s.supervision.Hang != HangAct {
		k.ends = nil
	}
	if k.ends != nil && (s.kept() || now.Sub(k.at) >= keepFor) {
		s.becomeHalting(generation.Suspect{Cause: k.ends, Ordered: true}, now)
	}
}
