package status

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestCommandsWithoutALauncher: the status says what runs in a pod that has started no rank, and that a whole command is restarted as one.
func TestCommandsWithoutALauncher(t *testing.T) {
	message := func(run v1alpha1.RunStatus) string {
		for _, c := range Assess(View{Size: 1, Members: []MemberView{{Pod: "p", Node: "n"}}, Run: run}).Conditions {
			if c.Type == v1alpha1.ConditionRunning {
				return c.Message
			}
		}
		return ""
	}
	whole := message(v1alpha1.RunStatus{State: v1alpha1.RunRunning, Generation: 1, Progress: v1alpha1.Progress{Ranks: 1, WholeCommand: true}})
	if !strings.Contains(whole, "1 rank runs, each the whole command of its pod, restarted as a whole") {
		t.Error(whole)
	}
	waits := "waits for the launcher of slot 0: no launcher has started a rank since the command began: ./run.sh"
	waiting := message(v1alpha1.RunStatus{State: v1alpha1.RunForming, Progress: v1alpha1.Progress{Waits: waits, UnprotectedPods: 1}})
	if waiting != waits {
		t.Error(waiting)
	}
}
