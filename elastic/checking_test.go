package elastic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// checkers plays the agents of a gang whose pods are checked.
type checkers struct {
	*testing.T
	state   *State
	now     time.Time
	pods    []Pod
	reports []protocol.Report
	// outcome is what a pod answers about a trial.
	outcome func(pod string, t protocol.Trial) protocol.TrialOutcome
	asked   int
	notices []string
	// known is what is known of nodes; mute: there is no answer. passes are those that the gang noted.
	known  NodesKnown
	mute   bool
	passes []NodePass
	causes map[string]string // why a pod was replaced
	// spare is the node of pods in the place of others; "": they find none. forgiven are nodes the exclusion of which was withdrawn.
	spare    string
	forgiven []string
	// speed is that of a pod's answer.
	speed func(pod string, t protocol.Trial) float64
}

func newCheckers(t *testing.T, n int) *checkers {
	c := &checkers{T: t, now: time.Unix(1_700_000_000, 0), state: New(n, 0, Record{}), causes: map[string]string{}, spare: "spare"}
	for i := range n {
		c.pods = append(c.pods, Pod{UID: fmt.Sprintf("p%d", i), Name: fmt.Sprintf("w-%d", i), Node: fmt.Sprintf("n%d", i), Devices: "nvidia.com/gpu", Created: c.now})
		c.reports = append(c.reports, c.fresh(i))
	}
	c.step(Supervise{Supervision{NodeCheck: CheckFirst}})
	return c
}

func (c *checkers) fresh(i int) protocol.Report {
	return protocol.Report{Incarnation: 1, Ranks: 2, Address: fmt.Sprintf("10.0.0.%d", i), Port: 4000, State: protocol.StateIdle, StateBytes: 1}
}

func (c *checkers) step(e Event) {
	for _, f := range Step(c.state, e, c.now) {
		switch f := f.(type) {
		case Persist:
			c.step(Stored{Revision: f.Revision, Generation: f.Record.Generation})
		case LookupNodes:
			if !c.mute {
				c.step(c.known)
			}
		case NotePasses:
			c.passes = f.Passes
		case EmitEvent:
			c.notices = append(c.notices, f.Notice.Message)
		case LookupHolders:
			for _, slot := range f.Slots {
				c.step(SlotHolder{Slot: slot, Pod: c.pods[slot], Runs: c.pods[slot].Node != ""})
			}
		case Forgive:
			c.forgiven = append(c.forgiven, f.Node)
			for i := range c.pods {
				if c.pods[i].Node == "" {
					c.pods[i].Node = f.Node
				}
			}
		case Replace:
			for i := range c.pods {
				if c.pods[i].UID == f.Termination.Pod {
					old := f.Termination.Pod
					c.causes[old] = f.Termination.Cause
					c.pods[i] = Pod{UID: old + "'", Name: c.pods[i].Name, Node: c.spare, Created: c.now}
					c.reports[i] = c.fresh(i)
					c.step(Released{Pod: old, At: c.now})
				}
			}
		}
	}
}

// play lets all agents report and answer until the gang runs, for five minutes at most.
func (c *checkers) play() bool { return c.playFor(300) }

func (c *checkers) playFor(seconds int) bool {
	for range seconds {
		c.now = c.now.Add(time.Second)
		for i := range c.pods {
			if c.pods[i].Node == "" {
				continue
			}
			c.reports[i].Sequence++
			c.step(Reported{Slot: Slot(i), Pod: c.pods[i], Report: c.reports[i]})
		}
		for i, p := range c.pods {
			d := c.state.Directive(Slot(i), p.UID)
			if d.Order == protocol.OrderRun {
				return true
			}
			if d.Order == protocol.OrderHalt && c.reports[i].Generation < d.Generation { // a pod in the place of another one
				c.reports[i].Generation, c.reports[i].State = d.Generation, protocol.StateHalted
			}
			if d.Trial.TrialID == (protocol.TrialID{}) {
				continue
			}
			had := false
			for _, a := range c.reports[i].Trials {
				had = had || a.TrialID == d.Trial.TrialID
			}
			if outcome := c.outcome(p.UID, d.Trial); !had && outcome != "" {
				c.asked++
				a := protocol.TrialAnswer{TrialID: d.Trial.TrialID, Outcome: outcome, Text: "planted", Model: "H200"}
				if c.speed != nil {
					a.Speed = c.speed(p.UID, d.Trial)
				}
				kept := slices.DeleteFunc(slices.Clone(c.reports[i].Trials), func(o protocol.TrialAnswer) bool { return o.Round == a.Round })
				c.reports[i].Trials = append(kept, a)
			}
		}
	}
	return false
}

func passes(string, protocol.Trial) protocol.TrialOutcome { return protocol.TrialPassed }

// TestCheckPasses: each pod is tried alone and once with its neighbour, then the gang runs.
func TestCheckPasses(t *testing.T) {
	c := newCheckers(t, 4)
	if c.outcome = passes; !c.play() || c.asked != 8 {
		t.Errorf("%d trials, waits %q", c.asked, c.state.Record.Progress.Waits)
	}
}

// TestNoCheckUnlessWanted: a job that does not want it begins at once.
func TestNoCheckUnlessWanted(t *testing.T) {
	c := newCheckers(t, 4)
	c.step(Supervise{})
	if c.outcome = passes; !c.play() || c.asked != 0 {
		t.Errorf("%d trials", c.asked)
	}
}

// TestGuiltyIsReplaced: by what it found alone, or by pairs; the gang runs with the pod that takes its place.
func TestGuiltyIsReplaced(t *testing.T) {
	for name, bad := range map[string]func(pod string, tr protocol.Trial) protocol.TrialOutcome{
		"wrong": func(pod string, _ protocol.Trial) protocol.TrialOutcome {
			return map[bool]protocol.TrialOutcome{true: protocol.TrialWrong, false: protocol.TrialPassed}[pod == "p1"]
		},
		"pairs": func(pod string, tr protocol.Trial) protocol.TrialOutcome {
			if tr.Partner != "" && (pod == "p1" || tr.Partner == "p1") {
				return protocol.TrialFailed
			}
			return protocol.TrialPassed
		},
	} {
		c := newCheckers(t, 4)
		if c.outcome = bad; !c.play() {
			t.Fatalf("%s: it does not run: %q, notices %q", name, c.state.Record.Progress.Waits, c.notices)
		}
		if c.pods[1].UID != "p1'" || c.pods[0].UID != "p0" || c.pods[2].UID != "p2" || c.pods[3].UID != "p3" {
			t.Errorf("%s: pods %v", name, c.pods)
		}
		t.Logf("%s: %q", name, c.notices)
	}
}

// TestWrongPodsAreReplaced: wrong results are proof by themselves, also in more than a quarter of the pods.
func TestWrongPodsAreReplaced(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialWrong, false: protocol.TrialPassed}[pod == "p0" || pod == "p2"]
	}
	if !c.play() || c.pods[0].UID != "p0'" || c.pods[1].UID != "p1" || c.pods[2].UID != "p2'" || c.pods[3].UID != "p3" {
		t.Errorf("waits %q, pods %v", c.state.Record.Progress.Waits, c.pods)
	}
	if r := c.state.Record.Check; r.Result != CheckReplaced || r.Replaced != 2 {
		t.Errorf("check %+v", r)
	}
}

// TestManyWrongPodsWait: more pods compute wrong results than a check replaces, and others right ones: none trains.
func TestManyWrongPodsWait(t *testing.T) {
	c := newCheckers(t, 6)
	c.outcome = func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialPassed, false: protocol.TrialWrong}[pod == "p0" || pod == "p2"]
	}
	if c.play() || c.state.Record.Check.Result != CheckNoHealthyNode || c.state.Record.Check.Replaced != 0 {
		t.Errorf("waits %q, check %+v", c.state.Record.Progress.Waits, c.state.Record.Check)
	}
}

// TestSlowImports: imports that do not end get more time once. A pod that needs still longer is reported, and trains.
func TestSlowImports(t *testing.T) {
	for needs, want := range map[time.Duration]CheckResult{
		10 * time.Second: CheckPassed, 90 * time.Second: CheckPassed, 10 * time.Minute: CheckInconclusive,
	} {
		c, tries := newCheckers(t, 4), 0
		c.outcome = func(pod string, tr protocol.Trial) protocol.TrialOutcome {
			if pod != "p1" {
				return protocol.TrialPassed
			}
			if tries++; tr.Imports < needs {
				return protocol.TrialLate
			}
			return protocol.TrialPassed
		}
		if !c.play() || c.pods[1].UID != "p1" || c.state.Record.Check.Result != want {
			t.Errorf("%s: waits %q, check %+v", needs, c.state.Record.Progress.Waits, c.state.Record.Check)
		}
		if text := c.state.Record.Check.Text; (want == CheckInconclusive) != strings.Contains(text, "slow storage: planted") || tries > 4 {
			t.Errorf("%s: %d tries, %q", needs, tries, text)
		}
	}
}

// TestLostTrialIsMadeAgain: an agent that never answers in pairs is not blamed, and does not stop the gang for ever.
func TestLostTrialIsMadeAgain(t *testing.T) {
	c := newCheckers(t, 3)
	silent := 2
	c.outcome = func(pod string, tr protocol.Trial) protocol.TrialOutcome {
		if pod == "p2" && tr.Attempt == 1 {
			silent--
			return ""
		}
		return protocol.TrialPassed
	}
	if !c.play() || c.pods[2].UID != "p2" || silent >= 0 {
		t.Errorf("waits %q, pods %v, %d", c.state.Record.Progress.Waits, c.pods, silent)
	}
}

// recovering is a gang whose generation 1 ended, by a failure that hardware may have caused or by the script's own.
func recovering(t *testing.T, job NodeCheck, traceback string) *checkers {
	c := newCheckers(t, 4)
	c.step(Supervise{Supervision{NodeCheck: job}})
	c.outcome = passes
	if job == CheckSuspects && (!c.play() || c.asked != 0) {
		t.Fatalf("%d trials before the first generation", c.asked)
	}
	if job == CheckFirst && (!c.play() || c.asked != 8) {
		t.Fatalf("%d trials before the first generation", c.asked)
	}
	c.asked = 0
	for i := range c.reports {
		c.reports[i].Generation, c.reports[i].State, c.reports[i].Trials = 1, protocol.StateRunning, nil
		c.reports[i].Rank = []protocol.Rank{{Local: 0, PID: 7}, {Local: 1, PID: 8}}
	}
	c.playFor(1)
	for i := range c.reports {
		c.reports[i].State = protocol.StateHalted
	}
	c.reports[1].Rank[0].Exit = &protocol.Exit{Code: 1, At: c.now, Traceback: traceback}
	return c
}

const uncorrectable = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"

// TestSuspicionIsChecked: before the generation after it, also where the first one needs no check. A failure of the script is not.
func TestSuspicionIsChecked(t *testing.T) {
	for _, job := range []NodeCheck{CheckSuspects, CheckFirst} {
		c := recovering(t, job, uncorrectable)
		if !c.play() || c.asked != 8 {
			t.Errorf("%d: %d trials, waits %q", job, c.asked, c.state.Record.Progress.Waits)
		}
		r := c.state.Snapshot()
		if last := r.Recoveries[len(r.Recoveries)-1]; last.Check <= 0 || r.Check.Before != 2 || r.Check.Result != CheckPassed {
			t.Errorf("%d: phase %s, check %+v", job, last.Check, r.Check)
		}
		c = recovering(t, job, "ValueError: loss is nan")
		if !c.play() || c.asked != 0 {
			t.Errorf("%d: %d trials after a failure of the script", job, c.asked)
		}
	}
	if c := recovering(t, CheckNever, uncorrectable); !c.play() || c.asked != 0 {
		t.Errorf("%d trials that the job does not want", c.asked)
	}
}

// TestSuspectIsReplaced: the check after a suspicion names the pod, which is replaced in the same recovery.
func TestSuspectIsReplaced(t *testing.T) {
	c := recovering(t, CheckSuspects, uncorrectable)
	c.outcome = func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialWrong, false: protocol.TrialPassed}[pod == "p2"]
	}
	if !c.play() || c.pods[2].UID != "p2'" || c.pods[1].UID != "p1" {
		t.Fatalf("waits %q, pods %v", c.state.Record.Progress.Waits, c.pods)
	}
	r := c.state.Snapshot()
	last := r.Recoveries[len(r.Recoveries)-1]
	if len(last.Replaced) != 1 || last.Replaced[0].Name != "w-2" || r.Check.Result != CheckReplaced || r.Check.Replaced != 1 {
		t.Errorf("replaced %+v, check %+v", last.Replaced, r.Check)
	}
}

// TestFaultOfTheCheck: pods that fail one after another, wherever they are, use up no more than a few nodes. Then the gang begins.
func TestFaultOfTheCheck(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialFailed, false: protocol.TrialPassed}[pod[:2] == "p3"]
	}
	if !c.play() || c.pods[3].UID != "p3'''" || c.state.Record.Check.Result != CheckInconclusive {
		t.Errorf("pods %v, check %+v", c.pods, c.state.Record.Check)
	}
}

// TestNoAnswers: agents that make no trial, such as older ones, delay the gang for one trial.
func TestNoAnswers(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(string, protocol.Trial) protocol.TrialOutcome { return "" }
	if !c.playFor(110) || c.pods[0].UID != "p0" || c.state.Record.Check.Result != CheckInconclusive {
		t.Errorf("pods %v, check %+v", c.pods, c.state.Record.Check)
	}
}

// TestAllFail: a cause that is not one node names no pod, and the gang begins.
func TestAllFail(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(string, protocol.Trial) protocol.TrialOutcome { return protocol.TrialFailed }
	if !c.play() || c.pods[0].UID != "p0" || c.state.Record.Check.Result != CheckInconclusive || c.state.Record.Check.Replaced != 0 {
		t.Errorf("pods %v, check %+v", c.pods, c.state.Record.Check)
	}
}

// TestLeaderDiesWhileNamedPodIsReplaced: another coordinator does not name it again, and keeps the count.
func TestLeaderDiesWhileNamedPodIsReplaced(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(pod string, _ protocol.Trial) protocol.TrialOutcome {
		return map[bool]protocol.TrialOutcome{true: protocol.TrialWrong, false: protocol.TrialPassed}[pod == "p1"]
	}
	for c.state.Record.Check.Replaced == 0 {
		if c.playFor(1) {
			t.Fatal("it runs")
		}
	}
	c.state = New(4, 0, c.state.Snapshot())
	c.step(Supervise{Supervision{NodeCheck: CheckFirst}})
	if !c.play() || c.state.Record.Check.Replaced != 1 || c.state.Record.Check.Result != CheckReplaced {
		t.Errorf("check %+v", c.state.Record.Check)
	}
}

// TestCheckContinues: another coordinator asks only for what is not answered.
func TestCheckContinues(t *testing.T) {
	c := newCheckers(t, 4)
	c.outcome = func(_ string, tr protocol.Trial) protocol.TrialOutcome {
		if tr.Partner == "" {
			return protocol.TrialPassed
		}
		return ""
	}
	if c.playFor(20) {
		t.Fatal("it runs before the pairs are tried")
	}
	c.state = New(4, 0, c.state.Snapshot())
	c.step(Supervise{Supervision{NodeCheck: CheckFirst}})
	before := c.asked
	if c.outcome = passes; !c.play() || c.asked-before != 4 {
		t.Errorf("%d trials after the restart", c.asked-before)
	}
}

// TestVerdictsOfALargeGang: the verdict is computed when a round is answered, not with each answer of each agent.
func TestVerdictsOfALargeGang(t *testing.T) {
	const pods = 5000
	c := newCheckers(t, pods)
	verdicts, judged := 0, time.Time{}
	report := func(i int) {
		c.now = c.now.Add(10 * time.Microsecond)
		was, _ := c.state.members.Take(Slot(i), c.pods[i], &c.reports[i], 0, c.now)
		c.state.noteTrials(Slot(i), &was)
		c.state.advanceCheck(c.now)
		if at := c.state.run.forming.checking.judgedAt; at != judged {
			judged, verdicts = at, verdicts+1
		}
	}
	for i := range c.pods {
		report(i)
	}
	c.state.noteNodes(NodesKnown{})
	answers := 0
	for range 4 {
		for i, p := range c.pods {
			if tr := c.state.wantedTrial(Slot(i), p.UID); tr.TrialID != (protocol.TrialID{}) {
				answers++
				a := protocol.TrialAnswer{TrialID: tr.TrialID, Outcome: protocol.TrialPassed}
				c.reports[i].Trials = append(slices.Clone(c.reports[i].Trials), a)
			}
			report(i)
		}
	}
	if r := c.state.Record.Check.Result; r != CheckPassed || answers != 2*pods || verdicts != 3 {
		t.Errorf("%s, %d verdicts on %d answers", r, verdicts, answers)
	}
}
