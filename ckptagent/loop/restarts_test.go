//go:build linux

package loop

import (
	"io"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestRestartsThatAreKept: the job's limit of restarts overrides that of the launcher, and ranks receive the limit in effect.
func TestRestartsThatAreKept(t *testing.T) {
	number := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		job  *int
		line string
		said *int
		told int
	}{
		"neither":                 {nil, "torchrun t.py", nil, protocol.RestartsWithoutProgress},
		"the launcher":            {nil, "torchrun --max-restarts=3 t.py", number(3), 3},
		"the launcher: none":      {nil, "torchrun --max-restarts 0 t.py", number(0), 0},
		"the job":                 {number(5), "torchrun t.py", number(5), 5},
		"both, and the job wins":  {number(0), "torchrun --max-restarts=3 t.py", number(0), 0},
		"a value that is no word": {nil, "", nil, protocol.RestartsWithoutProgress},
	} {
		argv := []string{launch.APICommand, `{"min_nodes":1,"max_nodes":1,"nproc_per_node":1,"max_restarts":0}`, "t"}
		if c.line != "" {
			argv = strings.Fields(c.line)
		}
		spec, err := launch.Parse(argv, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{c: Config{MaxRestarts: c.job, Log: io.Discard}}
		said := a.limitRestarts(&spec)
		if (said == nil) != (c.said == nil) || said != nil && *said != *c.said || spec.MaxRestarts != c.told {
			t.Errorf("%s: %v, ranks are told %d", name, said, spec.MaxRestarts)
		}
	}
}
