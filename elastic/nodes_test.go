package elastic

import (
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// knownNodes are the nodes of four pods, of which these passed.
func knownNodes(passed ...string) NodesKnown {
	k := NodesKnown{Nodes: map[string]NodeKnown{}}
	for _, name := range []string{"n0", "n1", "n2", "n3"} {
		k.Nodes[name] = NodeKnown{Passed: slices.Contains(passed, name)}
	}
	return k
}

// TestPassedNodesAreNotTried: unless one of them did not pass, the answer does not come, or the job wants a check in any case.
func TestPassedNodesAreNotTried(t *testing.T) {
	all := knownNodes("n0", "n1", "n2", "n3")
	for name, v := range map[string]struct {
		job   NodeCheck
		known NodesKnown
		mute  bool
		asked int
	}{
		"all passed":      {CheckUnlessPassed, all, false, 0},
		"one did not":     {CheckUnlessPassed, knownNodes("n0", "n1", "n3"), false, 8},
		"no answer":       {CheckUnlessPassed, all, true, 8},
		"in any case":     {CheckFirst, all, false, 8},
		"never the first": {CheckSuspects, all, false, 0},
	} {
		c := newCheckers(t, 4)
		c.step(Supervise{Supervision{NodeCheck: v.job}})
		c.known, c.mute, c.outcome = v.known, v.mute, passes
		if !c.play() || c.asked != v.asked {
			t.Errorf("%s: %d trials, waits %q", name, c.asked, c.state.Record.Progress.Waits)
		}
		if skipped := c.state.Record.Check.Result == CheckSkipped; skipped != (name == "all passed") {
			t.Errorf("%s: %+v", name, c.state.Record.Check)
		}
	}
}

// TestPassesAreNoted: those of nodes all pods of which passed, with the slowest speeds; a node with two pods once.
func TestPassesAreNoted(t *testing.T) {
	c := newCheckers(t, 4)
	c.pods[3].Node = "n2"
	c.outcome = passes
	c.speed = func(pod string, tr protocol.Trial) float64 {
		s := map[string]float64{"p0": 100, "p1": 100, "p2": 95, "p3": 98}[pod]
		if tr.Partner != "" {
			s /= 10
		}
		return s
	}
	if !c.play() {
		t.Fatal(c.state.Record.Progress.Waits)
	}
	want := []NodePass{
		{"n0", 2, "H200", check.Usual{Alone: 100, Pair: 10}}, {"n1", 2, "H200", check.Usual{Alone: 100, Pair: 10}},
		{"n2", 4, "H200", check.Usual{Alone: 95, Pair: 9.5}},
	}
	if !slices.Equal(c.passes, want) {
		t.Errorf("passes %+v", c.passes)
	}
	speeds := []Speeds{{Model: "H200", Pods: 4, Alone: 95, AloneMedian: 100, Pair: 9, PairMedian: 10}}
	if r := c.state.Record.Check; r.Rounds != 2 || !slices.Equal(r.Speeds, speeds) {
		t.Errorf("%d rounds, speeds %+v", r.Rounds, r.Speeds)
	}
	c = newCheckers(t, 4)
	c.pods[3].Node = "n2"
	c.outcome = func(pod string, tr protocol.Trial) protocol.TrialOutcome { // of one pod all answers are lost
		if pod == "p3" || tr.Partner == "p3" {
			return protocol.TrialLost
		}
		return protocol.TrialPassed
	}
	if !c.play() || len(c.passes) != 2 {
		t.Errorf("passes %+v of a node with a pod that did not pass; %+v", c.passes, c.state.Record.Check)
	}
}

// TestPassesThatAreNone: a node passes only if one of its pods exchanged data with another node, and its devices count only if its pod
// requests some.
func TestPassesThatAreNone(t *testing.T) {
	c := newCheckers(t, 2)
	c.pods[1].Node, c.outcome = "n0", passes
	if !c.play() || len(c.passes) != 0 {
		t.Errorf("a check within one node: passes %+v", c.passes)
	}
	c = newCheckers(t, 2)
	c.outcome = passes
	for i := range c.pods {
		c.pods[i].Devices = ""
	}
	if want := []NodePass{{"n0", 0, noDevice, check.Usual{}}, {"n1", 0, noDevice, check.Usual{}}}; !c.play() || !slices.Equal(c.passes, want) {
		t.Errorf("pods without devices: passes %+v", c.passes)
	}
}

// TestSlowPodIsReportedOrReplaced: by the usual speed of its model, of which its gang alone is too small to have a median.
func TestSlowPodIsReportedOrReplaced(t *testing.T) {
	for name, v := range map[string]struct {
		replace bool
		slow    []string
		alone   float64
		moved   string
		events  int
	}{
		"reported":          {false, []string{"p1"}, 85, "p1", 1},
		"replaced":          {true, []string{"p1"}, 85, "p1'", 0},
		"within the noise":  {true, []string{"p1"}, 95, "p1", 0},
		"more than one can": {true, []string{"p1", "p2"}, 85, "p1", 2},
	} {
		c := newCheckers(t, 3)
		c.step(Supervise{Supervision{NodeCheck: CheckFirst, ReplaceSlow: v.replace}})
		c.known = NodesKnown{Usual: map[string]check.Usual{"H200": {Alone: 100, Pair: 10}}}
		c.outcome = passes
		c.speed = func(pod string, tr protocol.Trial) float64 {
			switch {
			case tr.Partner != "":
				return 10
			case slices.Contains(v.slow, pod):
				return v.alone
			}
			return 100
		}
		if !c.play() || c.pods[1].UID != v.moved {
			t.Fatalf("%s: pods %v, waits %q", name, c.pods, c.state.Record.Progress.Waits)
		}
		trains := slices.DeleteFunc(slices.Clone(c.notices), func(n string) bool { return !strings.Contains(n, "trains nevertheless") })
		if len(trains) != v.events || c.state.Record.Check.Result == CheckInconclusive {
			t.Errorf("%s: notices %q, check %+v", name, c.notices, c.state.Record.Check)
		}
		if moved := c.causes["p1"]; v.moved != "p1" && moved != replacements.NodeSlow {
			t.Errorf("%s: moved for %q", name, moved)
		}
		for _, p := range c.passes { // a slow node has not passed
			if slow := p.Node == "n1" && v.moved == "p1" && v.alone < 90; slow {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
}
