//go:build linux

package loop_test

import (
	"strings"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
)

// restorer is a script that saves steps in the first generation. In the next generation it fails at the point that FAILS names.
const restorer = `
import os, sys, time, holdfast
fails, again = os.environ["FAILS"], os.environ["HOLDFAST_GENERATION"] == "2"
class Part:
    def state_dict(self): return {"a": 1}
    def load_state_dict(self, saved):
        if again and fails == "quiet": os._exit(5)
        if again and fails != "after": raise ValueError("different number of parameter groups")
ck = holdfast.attach()
ck.track(part=Part())
try: start = ck.restore()
except holdfast.RestoreError:
    if fails != "own": raise
    start = 0
for step in range(start + 1, 10**9):
    ck.save(step)
    if again: sys.exit(6)
    time.sleep(0.005)
`

// TestARankThatFailsToRestore: the exit of a real rank has Restoring exactly if the rank was restoring its step, however it ended.
func TestARankThatFailsToRestore(t *testing.T) {
	for fails, want := range map[string]struct {
		restoring bool
		code      int32
		says      string
	}{
		"raise": {true, 1, "RestoreError: restoring step "},
		"quiet": {true, 5, ""},
		"own":   {false, 6, ""}, // continues from its own checkpoint, and fails later
		"after": {false, 6, ""},
	} {
		t.Run(fails, func(t *testing.T) {
			c, p := savingPod(t)
			p.Env["FAILS"] = fails
			p.File("train.py", restorer)
			lead(c, v1.Order_ORDER_RUN, nil)
			p.Start("torchrun", "train.py")
			c.Await(t, "a", "runs", runs(1, 1))
			at := newest(follow(t, c, "a step", nil, func(r *v1.Report) bool { return newest(r) > 0 }))
			lead(c, v1.Order_ORDER_HALT, func(d *v1.Directive) { d.CommonStep, d.ReclaimBelow = at, at })
			c.Await(t, "a", "has halted", func(r *v1.Report) bool { return r.State == v1.State_STATE_HALTED })
			run := &v1.Generation{Number: 2, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", RestoreStep: at}
			c.Direct("a", &v1.Directive{Generation: 2, Order: v1.Order_ORDER_RUN, Run: run, CommonStep: at, ReclaimBelow: at})
			r := c.Await(t, "a", "has failed", func(r *v1.Report) bool { return r.Generation == 2 && r.State == v1.State_STATE_FAILED })
			if e := r.Rank[0].Exit; e.Restoring != want.restoring || e.Code != want.code || !strings.Contains(e.Traceback, want.says) {
				t.Errorf("its exit is %v", e)
			}
		})
	}
}
