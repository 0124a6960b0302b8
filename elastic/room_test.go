package elastic

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/internal/protocol"
)

// wrongAt answers that the pods of a slot, also those in its place, compute wrong results.
func wrongAt(uid string) func(string, protocol.Trial) protocol.TrialOutcome {
	return func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialWrong, false: protocol.TrialPassed}[strings.TrimRight(pod, "'") == uid]
	}
}

// TestNoHealthyNode: a pod in place of a named one finds no node. The gang says so, and how to overrule, and goes on once there is one.
// Another coordinator does the same.
func TestNoHealthyNode(t *testing.T) {
	c := newCheckers(t, 4)
	c.spare, c.outcome = "", wrongAt("p1")
	for range 2 {
		if c.playFor(120) {
			t.Fatal("it runs without a pod")
		}
		waits := c.state.Record.Progress.Waits
		for _, part := range []string{NoticeNoHealthyNode, "pod w-1 of slot 1 finds no node", "n1 is excluded", "planted", "evict node/n1 --undo"} {
			if !strings.Contains(waits, part) {
				t.Errorf("waits %q, without %q", waits, part)
			}
		}
		if last := c.notices[len(c.notices)-1]; last != waits {
			t.Errorf("newest event %q", last)
		}
		c.state = New(4, 0, c.state.Snapshot())
		c.step(Supervise{Supervision{NodeCheck: CheckFirst}})
	}
	c.pods[1].Node, c.outcome = "n1", passes
	if !c.play() || len(c.forgiven) > 0 {
		t.Errorf("waits %q, forgiven %v", c.state.Record.Progress.Waits, c.forgiven)
	}
}

// TestSlowNodeIsBetterThanNone: its exclusion is withdrawn, and the gang goes on there, slow.
func TestSlowNodeIsBetterThanNone(t *testing.T) {
	c := newCheckers(t, 4)
	c.step(Supervise{Supervision{NodeCheck: CheckFirst, ReplaceSlow: true}})
	c.known = NodesKnown{Usual: map[string]check.Usual{"H200": {Alone: 100, Pair: 10}}}
	c.spare, c.outcome = "", passes
	c.speed = func(pod string, _ protocol.Trial) float64 {
		return map[bool]float64{true: 50, false: 100}[strings.TrimRight(pod, "'") == "p1"]
	}
	if !c.play() || c.pods[1] != (Pod{UID: "p1'", Name: "w-1", Node: "n1", Created: c.pods[1].Created}) || len(c.forgiven) != 1 {
		t.Fatalf("pods %v, forgiven %v, waits %q", c.pods, c.forgiven, c.state.Record.Progress.Waits)
	}
	if r := c.state.Record.Check; r.Replaced != 1 || !r.KeepsSlow || r.Result != CheckReplaced {
		t.Errorf("check %+v", r)
	}
}

// TestWrongResultsNeverTrain: once no more pods may be replaced the gang waits, until the pod is gone or the job wants no check.
func TestWrongResultsNeverTrain(t *testing.T) {
	for name, end := range map[string]func(*checkers){
		"the job wants no check": func(c *checkers) { c.step(Supervise{}) },
		"another pod": func(c *checkers) {
			c.outcome = passes
			c.pods[1] = Pod{UID: "another", Name: "w-1", Node: "n9", Created: c.now}
			c.reports[1] = c.fresh(1)
		},
	} {
		c := newCheckers(t, 4)
		c.outcome = wrongAt("p1")
		if c.play() || c.state.Record.Check.Result != CheckNoHealthyNode || c.state.Record.Check.Replaced != 3 {
			t.Fatalf("%s: check %+v", name, c.state.Record.Check)
		}
		if waits := c.state.Record.Progress.Waits; !strings.HasPrefix(waits, NoticeNoHealthyNode) {
			t.Errorf("%s: waits %q", name, waits)
		}
		said := 0
		for _, n := range c.notices {
			if strings.HasPrefix(n, NoticeNoHealthyNode) {
				said++
			}
		}
		end(c)
		ran, want := c.play(), map[bool]CheckResult{true: CheckWithdrawn, false: CheckReplaced}[name == "the job wants no check"]
		if r := c.state.Record.Check; r.Result != want || r.Ended.IsZero() {
			t.Errorf("%s: check %+v", name, r)
		}
		if said != 1 || !ran {
			t.Errorf("%s: waits %q, said %d times", name, c.state.Record.Progress.Waits, said)
		}
	}
}
