//go:build linux

package loop

import (
	"testing"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestWhenTheAgentEnds: the agent does not end while a launcher may wait for its result, nor before its last report is stored and sent.
func TestWhenTheAgentEnds(t *testing.T) {
	exit, returned := &protocol.Exit{}, &ckptagent.Returned{Code: 143}
	for name, c := range map[string]struct {
		agent *Agent
		want  bool
	}{
		"launcher returned, command runs":     {&Agent{command: &proc.Command{}, signalled: true, state: ckptagent.State{Durable: ckptagent.Durable{Clean: true, Launcher: "l", Returned: returned}}}, false},
		"no launcher, command runs":           {&Agent{command: &proc.Command{}, signalled: true, state: ckptagent.State{Durable: ckptagent.Durable{Clean: true}}}, false},
		"launcher returned, command ended":    {&Agent{command: &proc.Command{}, state: ckptagent.State{Durable: ckptagent.Durable{Clean: true, Launcher: "l", Returned: returned, Command: ckptagent.Command{Exit: exit}}}}, true},
		"launcher waits, command ended":       {&Agent{command: &proc.Command{}, state: ckptagent.State{Durable: ckptagent.Durable{Clean: true, Launcher: "l", Command: ckptagent.Command{Exit: exit}}}}, false},
		"no init, told to go":                 {&Agent{signalled: true, state: ckptagent.State{Durable: ckptagent.Durable{Clean: true, Launcher: "l", Returned: returned}}}, true},
		"no init":                             {&Agent{state: ckptagent.State{Durable: ckptagent.Durable{Clean: true, Launcher: "l", Returned: returned}}}, false},
		"whole command concluded":             {&Agent{command: &proc.Command{}, state: ckptagent.State{Durable: ckptagent.Durable{Whole: true, Returned: returned}}}, true},
		"whole command concluded, not stored": {&Agent{command: &proc.Command{}, unstored: true, state: ckptagent.State{Durable: ckptagent.Durable{Whole: true, Returned: returned}}}, false},
		"whole command concluded, not done":   {&Agent{command: &proc.Command{}, pendingTasks: []ckptagent.Effect{ckptagent.Return{}}, state: ckptagent.State{Durable: ckptagent.Durable{Whole: true, Returned: returned}}}, false},
	} {
		if got := c.agent.done(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
