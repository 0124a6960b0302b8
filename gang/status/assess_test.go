package status

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"

	"holdfast.dev/holdfast/gang"
)

// TestRunsWithFewer: a gang that trains with fewer pods runs, and says why.
func TestRunsWithFewer(t *testing.T) {
	why := "goes on with 1 of 2 pods: no node for slot 1 (no GPU)"
	run := v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3, Out: []int32{1}, Progress: v1alpha1.Progress{Ranks: 2, Fewer: why}}
	s := Assess(View{Size: 2, Members: []MemberView{{Slot: 0, Node: "a"}, {Slot: 1}}, Run: run})
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionRunning && (!c.True || c.Reason != v1alpha1.ReasonRunsWithFewer || !strings.HasSuffix(c.Message, why)) {
			t.Errorf("condition Running is %+v", c)
		}
	}
}

// TestKueueCountsMissingPods: condition Running of a job in a queue of Kueue says that Kueue counts the pods without a node as not ready.
func TestKueueCountsMissingPods(t *testing.T) {
	const one = "; Kueue (queue gpus) counts 1 pod as not ready"
	running := v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3}
	fewer := running
	fewer.Out = []int32{1}
	lacks, full := []MemberView{{Slot: 0, Node: "a"}, {Slot: 1}}, []MemberView{{Slot: 0, Node: "a"}, {Slot: 1, Node: "b"}}
	for name, c := range map[string]struct {
		queue   string
		run     v1alpha1.RunStatus
		members []MemberView
		said    bool
	}{
		"goes on with fewer":          {"gpus", fewer, lacks, true},
		"waits for the pod":           {"gpus", running, lacks, true},
		"a candidate, not yet in":     {"gpus", fewer, full, false},
		"runs with all":               {"gpus", running, full, false},
		"in no queue":                 {"", fewer, lacks, false},
		"in no queue, and waits":      {"", running, lacks, false},
		"has made no generation, yet": {"gpus", v1alpha1.RunStatus{}, lacks, false},
	} {
		for _, is := range Assess(View{Size: 2, Members: c.members, Queue: c.queue, Run: c.run}).Conditions {
			if is.Type == v1alpha1.ConditionRunning && strings.Contains(is.Message, one) != c.said {
				t.Errorf("%s: %s", name, is.Message)
			}
		}
	}
}

func TestAssess(t *testing.T) {
	on := func(nodes ...string) (ms []MemberView) {
		for slot, n := range nodes {
			ms = append(ms, MemberView{Slot: slot, Node: n})
		}
		return ms
	}
	refused := v1alpha1.PlacementStatus{Reason: gang.InsufficientNodes, Message: "2 pods wanted, 1 fits"}
	for _, tc := range []struct {
		name            string
		v               View
		phase           v1alpha1.GangPhase
		nodes           string
		placed, message string
	}{
		{"nothing exists", View{Size: 2}, v1alpha1.PhaseWaiting, "0/2", "WaitingForMembers", "0 of 2 pods exist"},
		{"one exists, the scheduler has not spoken", View{Size: 2, Members: on("")}, v1alpha1.PhaseWaiting, "0/2", "WaitingForMembers", "1 of 2"},
		{"refused", View{Size: 2, Members: on("", ""), Answer: refused}, v1alpha1.PhaseWaiting, "0/2", "InsufficientNodes", "2 pods wanted"},
		{"a refusal of before a member went away", View{Size: 2, Members: on(""), Answer: refused}, v1alpha1.PhaseWaiting, "0/2", "WaitingForMembers", "1 of 2"},
		{"half bound for a moment", View{Size: 2, Members: on("a", "")}, v1alpha1.PhaseWaiting, "1/2", "WaitingForMembers", "1 of 2 pods are on nodes"},
		{"bound", View{Size: 2, Members: on("a", "b"), Answer: refused}, v1alpha1.PhaseStarting, "2/2", "Placed", "all 2 pods"},
		{"forming", View{Size: 2, Members: on("a", "b"), Run: v1alpha1.RunStatus{State: v1alpha1.RunForming}}, v1alpha1.PhaseStarting, "2/2", "Placed", ""},
		{"running", View{Size: 2, Members: on("a", "b"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 1, Progress: v1alpha1.Progress{Ranks: 4}}}, v1alpha1.PhaseRunning, "2/2", "Placed", ""},
		{"halting", View{Size: 2, Members: on("a", "b"), Run: v1alpha1.RunStatus{State: v1alpha1.RunHalting, Generation: 1}}, v1alpha1.PhaseRecovering, "2/2", "Placed", ""},
		{"a member lost while running", View{Size: 2, Members: on("a"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3}}, v1alpha1.PhaseRecovering, "1/2", "MemberLost", "1 of 2"},
		{"with fewer on purpose", View{Size: 2, Members: on("a"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3, Out: []int32{1}}}, v1alpha1.PhaseRunning, "1/2", "MemberLost", "1 of 2"},
		{"with fewer, and one more is lost", View{Size: 3, Members: on("a"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3, Out: []int32{1}}}, v1alpha1.PhaseRecovering, "1/3", "MemberLost", "1 of 3"},
		{"some without a node, enough to train", View{Size: 4, Min: 2, Members: on("a", "b", "", "")}, v1alpha1.PhaseStarting, "2/4 (2–4)", "WaitingForMembers", "2 of 4"},
		{"some without a node, too few to train", View{Size: 4, Min: 2, Members: on("a", "", "", "")}, v1alpha1.PhaseWaiting, "1/4 (2–4)", "WaitingForMembers", "1 of 4"},
		{"enough with a node, in no whole block", View{Size: 4, Min: 2, Unit: 2, Members: on("a", "", "c", "")}, v1alpha1.PhaseWaiting, "2/4 (2–4)", "WaitingForMembers", "2 of 4"},
		{"enough with a node, in a whole block", View{Size: 4, Min: 2, Unit: 2, Members: on("", "", "c", "d")}, v1alpha1.PhaseStarting, "2/4 (2–4)", "WaitingForMembers", "2 of 4"},
		{"trains with fewer, and can with fewer yet", View{Size: 4, Min: 2, Members: on("a", "b", "c"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3, Out: []int32{3}}}, v1alpha1.PhaseRunning, "3/4 (2–4)", "MemberLost", "3 of 4"},
		{"a member lost, enough to train", View{Size: 4, Min: 2, Members: on("a", "b", "c"), Run: v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3}}, v1alpha1.PhaseRecovering, "3/4 (2–4)", "MemberLost", "3 of 4"},
		{"forming again", View{Size: 2, Members: on("a", "b"), Run: v1alpha1.RunStatus{State: v1alpha1.RunForming, Generation: 3}}, v1alpha1.PhaseRecovering, "2/2", "Placed", ""},
		{"finished, pods are gone", View{Size: 2, Run: v1alpha1.RunStatus{State: v1alpha1.RunFinished, Generation: 1}}, v1alpha1.PhaseFinished, "0/2", "Finished", "waits for no pod: 0 of 2 pods are on nodes"},
		{"given up", View{Size: 2, Members: on("a", "b"), Run: v1alpha1.RunStatus{State: v1alpha1.RunGivenUp, Verdict: &v1alpha1.Verdict{Reason: "NoProgress"}}}, v1alpha1.PhaseFailed, "2/2", "Placed", ""},
		{"the job failed without a verdict", View{Size: 1, JobEnded: true, JobFailed: true, JobMessage: "deadline"}, v1alpha1.PhaseFailed, "0/1", "Failed", "waits for no pod"},
		{"the job completed without a verdict", View{Size: 1, JobEnded: true}, v1alpha1.PhaseFinished, "0/1", "Finished", "waits for no pod"},
		{"the job completed, and one pod is left", View{Size: 2, Members: on("a"), JobEnded: true}, v1alpha1.PhaseFinished, "1/2", "Finished", "1 of 2 pods are on nodes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Assess(tc.v)
			if s.Phase != tc.phase || s.Nodes != tc.nodes {
				t.Errorf("phase %s nodes %s, want %s %s", s.Phase, s.Nodes, tc.phase, tc.nodes)
			}
			byType := map[string]Condition{}
			for _, c := range s.Conditions {
				byType[c.Type] = c
				if c.Type != "StateInMemory" && c.Type != "StandbysReady" && (c.Reason == "" || c.Message == "") {
					t.Errorf("condition %s says nothing: %+v", c.Type, c)
				}
			}
			if c := byType["Placed"]; c.Reason != tc.placed || !strings.Contains(c.Message, tc.message) {
				t.Errorf("Placed is %+v, want %s with %q", c, tc.placed, tc.message)
			}
			if c := byType["Running"]; tc.phase == v1alpha1.PhaseWaiting && c.Reason != tc.placed {
				t.Errorf("Running is %+v of a gang that waits, want the reason why it has no nodes: %s", c, tc.placed)
			}
			if got, want := byType["Running"].True, tc.phase == v1alpha1.PhaseRunning; got != want {
				t.Errorf("Running is %v in phase %s", got, tc.phase)
			}
			if c, f := byType["Complete"].True, byType["Failed"].True; c != (tc.phase == v1alpha1.PhaseFinished) || f != (tc.phase == v1alpha1.PhaseFailed) {
				t.Errorf("Complete is %v and Failed is %v in phase %s", c, f, tc.phase)
			}
		})
	}
}

// TestRecoveringSaysWhoIsAwaited: the message names the member that is missing and why it has no node.
func TestRecoveringSaysWhoIsAwaited(t *testing.T) {
	run := v1alpha1.RunStatus{
		State:               v1alpha1.RunForming,
		Generation:          3,
		PendingReplacements: []v1alpha1.Termination{{Pod: "p-1", Node: "n2", Cause: "NodeUnreachable"}},
	}
	refused := v1alpha1.PlacementStatus{Reason: gang.InsufficientNodes, Message: "1 pod wanted, 0 fit"}
	for _, tc := range []struct {
		name string
		v    View
		want string
	}{
		{"no new pod yet", View{Size: 2, Members: []MemberView{{Slot: 0, Pod: "p-0", Node: "n1"}}, Run: run},
			"generation 3: pod p-1 on node n2 must be replaced: NodeUnreachable; slot 1 waits for a new pod"},
		{"no node for it", View{Size: 2, Members: []MemberView{{Slot: 0, Pod: "p-0", Node: "n1"}, {Slot: 1, Pod: "p-1b"}}, Run: v1alpha1.RunStatus{State: v1alpha1.RunForming, Generation: 3}, Answer: refused},
			"generation 3: ended; the next one waits for all agents; pod p-1b of slot 1 waits for a node; the scheduler reports: 1 pod wanted, 0 fit"},
		{"one with a minimum", View{Size: 2, Min: 1, Members: []MemberView{{Slot: 0, Pod: "p-0", Node: "n1"}, {Slot: 1, Pod: "p-1b"}}, Run: v1alpha1.RunStatus{
			State: v1alpha1.RunForming, Generation: 3, Progress: v1alpha1.Progress{Waits: "waits for slot 1; cannot go on without it: the state is divided"}}},
			"generation 3: ended; waits for slot 1; cannot go on without it: the state is divided; pod p-1b of slot 1 waits for a node"},
		{"an answer of before", View{Size: 2, Members: []MemberView{{Slot: 0, Pod: "p-0", Node: "n1"}}, Run: v1alpha1.RunStatus{Generation: 3}, Answer: refused},
			"generation 3: slot 1 waits for a new pod"},
		{"many", View{Size: 7, Members: []MemberView{{Slot: 6, Node: "n1"}}, Run: v1alpha1.RunStatus{Generation: 1}},
			"generation 1: slot 0 waits for a new pod; slot 1 waits for a new pod; slot 2 waits for a new pod; slot 3 waits for a new pod; and 2 more"},
		{"all are there", View{Size: 1, Members: []MemberView{{Slot: 0, Node: "n1"}}, Run: v1alpha1.RunStatus{Generation: 2}},
			"generation 2: its ranks are restarting"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Assess(tc.v)
			if s.Phase != v1alpha1.PhaseRecovering {
				t.Fatalf("phase %s", s.Phase)
			}
			for _, c := range s.Conditions {
				if c.Type == "Running" && c.Message != tc.want {
					t.Errorf("says %q, want %q", c.Message, tc.want)
				}
			}
		})
	}
}

func TestAssessFeatures(t *testing.T) {
	v := View{
		Size:     1,
		State:    Feature{Reason: "NoStateSize", Message: "no annotation"},
		Standbys: Feature{On: true},
		Run:      v1alpha1.RunStatus{Progress: v1alpha1.Progress{Ranks: 2, StandbysReady: 1}},
	}
	byType := map[string]Condition{}
	for _, c := range Assess(v).Conditions {
		byType[c.Type] = c
	}
	if c := byType["StateInMemory"]; c.True || c.Reason != "NoStateSize" {
		t.Errorf("StateInMemory %+v", c)
	}
	if c := byType["StandbysReady"]; c.True || c.Reason != "StandbysWarming" || !strings.HasPrefix(c.Message, "1 of 2 ranks have") {
		t.Errorf("StandbysReady %+v", c)
	}
	v.Run.Progress.StandbysReady = 2
	if c := Assess(v).Conditions[3]; !c.True {
		t.Errorf("StandbysReady %+v", c)
	}
}

// The message describes commands that run without an agent, and what a failure restarts, as soon as the coordinator has written a record.
func TestAssessCommands(t *testing.T) {
	of := func(r v1alpha1.RunStatus, kind string) (got Condition) {
		for _, c := range Assess(View{Size: 1, Run: r}).Conditions {
			if c.Type == kind {
				got = c
			}
		}
		return got
	}
	if c := of(v1alpha1.RunStatus{}, "Unprotected"); c != (Condition{}) {
		t.Errorf("the coordinator has said nothing, and the status says %+v", c)
	}
	if c := of(v1alpha1.RunStatus{State: v1alpha1.RunForming}, "Unprotected"); c.True || c.Reason != "Protected" {
		t.Errorf("%+v", c)
	}
	c := of(
		v1alpha1.RunStatus{
			State:    v1alpha1.RunForming,
			Progress: v1alpha1.Progress{UnprotectedPods: 2, Unprotected: []v1alpha1.UnprotectedPod{{Pod: "a", Runs: "mpirun -n 8"}}},
		},
		"Unprotected",
	)
	if !c.True || c.Reason != "Unprotected" || !strings.Contains(c.Message, "in 2 pods the agent started no rank") ||
		!strings.Contains(c.Message, "mpirun -n 8") ||
		!strings.Contains(c.Message, "torchrun") {
		t.Errorf("%+v", c)
	}
	if c := of(v1alpha1.RunStatus{State: v1alpha1.RunRunning, Progress: v1alpha1.Progress{WholeCommand: true}}, "LauncherRestarts"); !c.True ||
		c.Reason != "WholeCommand" ||
		!strings.Contains(c.Message, "torchrun") {
		t.Errorf("%+v", c)
	}
	if c := of(v1alpha1.RunStatus{State: v1alpha1.RunRunning}, "LauncherRestarts"); c.True || c.Reason != "RanksRestart" {
		t.Errorf("%+v", c)
	}
	if c := of(v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 1}, "GoodputKnown"); !c.True || c.Reason != "ResumePointKnown" {
		t.Errorf("%+v", c)
	}
	if c := of(v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 3, Progress: v1alpha1.Progress{ResumeUnknown: 2}}, "GoodputKnown"); c.True ||
		c.Reason != "ResumePointUnknown" ||
		!strings.Contains(c.Message, "2 recoveries") {
		t.Errorf("%+v", c)
	}
}
