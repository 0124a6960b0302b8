package account

import (
	"fmt"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// Recovering returns a text on why a generation ended.
func Recovering(generation int64, c cause.Cause) string {
	what := string(c.Code)
	if c.Rank >= 0 {
		what += fmt.Sprintf(" of rank %d in slot %d", c.Rank, c.Slot)
	}
	if c.ExitCode != 0 {
		what += fmt.Sprintf(" with exit code %d", c.ExitCode)
	}
	return fmt.Sprintf("generation %d ended: %s: %s", generation, what, cause.LastLine(cause.Tail(c.Message, maxMessage)))
}

// Text describes a completed recovery: its phases and its resume point.
func (r *Recovery) Text() string {
	parts := []string{}
	for _, p := range r.Phases() {
		parts = append(parts, fmt.Sprintf("%s %s", p.Name, p.Took.Round(time.Millisecond)))
	}
	from := "from the beginning or the script's own checkpoint"
	if r.CostKnown() {
		from = fmt.Sprintf("from step %d, %d steps recomputed", r.ResumedAt, r.StepsRecomputed)
	}
	return fmt.Sprintf("generation %d runs %s after %s of rank %d: %s; %s, %d of %d ranks started in warm standbys",
		r.Generation, r.Total().Round(time.Millisecond), r.Cause.Code, r.Cause.Rank, strings.Join(parts, ", "), from, r.Standbys, r.Ranks)
}
