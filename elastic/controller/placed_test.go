package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
)

// refusedFor makes a pod one that the scheduler refuses.
func refusedFor(why string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why},
		}
	}
}

// because changes the reason with which a pod is refused.
func because(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].Reason = reason }
}

func TestPlacements(t *testing.T) {
	nominated := func(p *corev1.Pod) { p.Status.NominatedNodeName = "n9" }
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"all are on nodes":           {[]corev1.Pod{member("a", 0, "n1"), member("b", 1, "n2")}, "0 uid-a n1 , 1 uid-b n2 "},
		"one is refused":             {[]corev1.Pod{member("a", 0, "n1"), member("b", 1, "", refusedFor("no GPU"))}, "0 uid-a n1 , 1 uid-b  no GPU"},
		"no node would help":         {[]corev1.Pod{member("b", 1, "", refusedFor("no such GPU"), because(gang.Unsupported))}, "1 uid-b  no such GPU"},
		"its gang lacks members":     {[]corev1.Pod{member("b", 1, "", refusedFor("1 of 2"), because(gang.MemberLost))}, "1 uid-b  "},
		"room is made for it":        {[]corev1.Pod{member("b", 1, "", refusedFor("no GPU"), nominated)}, "1 uid-b  "},
		"the scheduler has not said": {[]corev1.Pod{member("b", 1, "", inPhase(corev1.PodPending))}, "1 uid-b  "},
		"a pod that goes is none":    {[]corev1.Pod{member("a", 0, "n1", deleted), member("b", 1, "n2", inPhase(corev1.PodFailed))}, ""},
	} {
		got := []string{}
		for _, p := range Placements(View{Job: "job-uid", Members: 2, Pods: c.pods}) {
			got = append(got, fmt.Sprintf("%d %s %s %s", p.Slot, p.Pod, p.Node, p.Refusal))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestCompletes: the job of a gang that finished without slot 1 is completed once nothing runs any more.
func TestCompletes(t *testing.T) {
	done := inPhase(corev1.PodSucceeded)
	waits := member("b", 1, "", refusedFor("no GPU"))
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want bool
	}{
		"a hole":                             {[]corev1.Pod{member("a", 0, "n1", done), waits, member("c", 2, "n3", done)}, true},
		"no pod in the slot":                 {[]corev1.Pod{member("a", 0, "n1", done), member("c", 2, "n3", done)}, true},
		"a pod uploads something":            {[]corev1.Pod{member("a", 0, "n1", done), waits, member("c", 2, "n3")}, false},
		"a pod failed after its ranks":       {[]corev1.Pod{member("a", 0, "n1", done), waits, member("c", 2, "n3", inPhase(corev1.PodFailed))}, false},
		"a pod of the gang is gone":          {[]corev1.Pod{member("a", 0, "n1", done), waits}, false},
		"a candidate runs":                   {[]corev1.Pod{member("a", 0, "n1", done), member("b", 1, "n2"), member("c", 2, "n3", done)}, false},
		"a candidate ended, and its job too": {[]corev1.Pod{member("a", 0, "n1", done), member("b", 1, "n2", done), member("c", 2, "n3", done)}, false},
	} {
		if got := Completes(View{Job: "job-uid", Members: 3, Pods: slices.Clone(c.pods)}, []int32{1}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if membership.Ended(&waits) {
		t.Error("a pod without a node has ended")
	}
}
