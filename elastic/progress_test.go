package elastic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestGuessesEnd: a script whose resume point is unknown is killed again and again, each time at another step. Its running time counts as
// progress only for a limited number of restarts. A run of ten minutes resets that limit.
func TestGuessesEnd(t *testing.T) {
	for _, c := range []struct{ long, want int }{
		{0, 1 + account.MaxUnproven + protocol.RestartsWithoutProgress},
		{20, 20 + account.MaxUnproven + protocol.RestartsWithoutProgress},
	} {
		s := &stage{t: t, now: time.Unix(1_700_000_000, 0).UTC(), out: &strings.Builder{}}
		do := func(format string, args ...any) { s.command(strings.Fields(fmt.Sprintf(format, args...))) }
		do("gang 1")
		do("report 0 ranks=2 port=4000 bytes=0")
		do("stored")
		at, g := 1000, 0
		for s.state.Record.Verdict == nil && g < 100 {
			g++
			steps := 100 + 10*(g%7)
			if g == c.long {
				steps = 700
			}
			do("at %d", at)
			do("report 0 gen=%d state=running t=started:%d", g, at)
			do("at %d", at+1000)
			do("report 0 optimizer=%d|%d t=first:%d", steps, steps, at+1000)
			at += 1000 * steps
			do("at %d", at)
			do("report 0 state=failed exit=0:137:9: t=detected:%d", at)
			do("report 0 state=halted")
			do("stored")
			at += 1000
		}
		if v := s.state.Record.Verdict; v == nil || v.Reason != ReasonNoProgress || g != c.want {
			t.Errorf("a long run in generation %d: ended in generation %d by %+v, want NoProgress in %d", c.long, g, v, c.want)
		}
	}
}
