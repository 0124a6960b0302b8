//go:build linux

package loop

import (
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/internal/protocol"
)

func TestWhyThereAreNoStandbys(t *testing.T) {
	now := time.Unix(1000, 0)
	running := func(change func(*Agent)) *Agent {
		a := &Agent{pages: make([]rankPage, 2)}
		a.state = ckptagent.State{
			Durable: ckptagent.Durable{
				Phase:    protocol.StateRunning,
				Run:      protocol.Run{Number: 3},
				Timeline: protocol.Timeline{Started: now.Add(-30 * time.Second)},
			},
		}
		a.state.Rank = []ckptagent.Rank{{Alive: true}, {Alive: true}}
		change(a)
		return a
	}
	for name, c := range map[string]struct {
		change func(*Agent)
		want   string
	}{
		"no hook ran":         {func(*Agent) {}, "ignores PYTHONPATH"},
		"one ran in the past": {func(a *Agent) { a.pages[0].page = page.Page{Generation: 2, Hook: true} }, "ignores PYTHONPATH"},
		"no page":             {func(a *Agent) { a.pageOff = "the disk is full" }, "the disk is full"},
		"one ran":             {func(a *Agent) { a.pages[1].page = page.Page{Generation: 3, Hook: true} }, ""},
		"too early to say":    {func(a *Agent) { a.state.Timeline.Started = now.Add(-29 * time.Second) }, ""},
		"not started":         {func(a *Agent) { a.state.Timeline.Started = time.Time{} }, ""},
		"a whole command":     {func(a *Agent) { a.state.Whole = true }, ""},
		"failed":              {func(a *Agent) { a.state.Phase = protocol.StateFailed }, ""},
		"an older client told, or a generation before": {func(a *Agent) { a.modules = []string{"os"} }, ""},
	} {
		if got := running(c.change).noHook(now); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q in it", name, got, c.want)
		}
	}
}
