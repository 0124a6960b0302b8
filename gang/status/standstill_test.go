package status

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestStandstill: Progressing is False while ranks stand still, and Unknown if too little is known. Busy is True while they work. A gang
// whose ranks are not looked at has neither condition.
func TestStandstill(t *testing.T) {
	since := metav1.NewMicroTime(time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC))
	for name, c := range map[string]struct {
		state             v1alpha1.RunState
		verdict           string
		progressing, busy Condition
	}{
		"steps":       {v1alpha1.RunRunning, "", Condition{True: true, Reason: "Running"}, Condition{Reason: "Running"}},
		"works":       {v1alpha1.RunRunning, "Busy", Condition{True: true, Reason: "Busy"}, Condition{True: true, Reason: "Busy"}},
		"hangs":       {v1alpha1.RunRunning, "Hang", Condition{Reason: "Hang"}, Condition{Reason: "Hang"}},
		"unexplained": {v1alpha1.RunRunning, "Unexplained", Condition{Unknown: true, Reason: "Unexplained"}, Condition{Reason: "Unexplained"}},
		"recovers":    {v1alpha1.RunHalting, "", Condition{Reason: "Recovering"}, Condition{Reason: "Recovering"}},
	} {
		v := View{Size: 1, Members: []MemberView{{Pod: "p", Node: "n"}}, Run: v1alpha1.RunStatus{State: c.state, Generation: 1}}
		if c.verdict != "" {
			v.Run.Progress.Standstill = &v1alpha1.Standstill{Verdict: c.verdict, Since: since, Message: "rank 3 on n: sleep"}
		}
		got := map[string]Condition{}
		for _, condition := range Assess(v).Conditions {
			got[condition.Type] = condition
		}
		for kind, want := range map[string]Condition{v1alpha1.ConditionProgressing: c.progressing, v1alpha1.ConditionBusy: c.busy} {
			have := got[kind]
			if c.verdict != "" && have.Message != "no step since 2026-11-20T12:05:02Z: rank 3 on n: sleep" || have.Message == "" {
				t.Errorf("%s: %s says %q", name, kind, have.Message)
			}
			if want.Type, want.Message = kind, have.Message; have != want {
				t.Errorf("%s: %+v, want %+v", name, have, want)
			}
		}
		v.Unwatched = true
		for _, condition := range Assess(v).Conditions {
			if condition.Type == v1alpha1.ConditionProgressing || condition.Type == v1alpha1.ConditionBusy {
				t.Errorf("%s: not looked at, and %+v", name, condition)
			}
		}
	}
}
