package status

import "testing"

func TestAssessObserved(t *testing.T) {
	on, runs := MemberView{Node: "n"}, MemberView{Node: "n", Running: true}
	for name, c := range map[string]struct {
		v    View
		want Phase
		true string
	}{
		"no pods":       {View{Size: 2}, Waiting, ""},
		"one on a node": {View{Size: 2, Members: []MemberView{runs, {}}}, Waiting, ""},
		"starting":      {View{Size: 2, Members: []MemberView{runs, on}}, Starting, "Placed"},
		"running":       {View{Size: 2, Members: []MemberView{runs, runs}}, Running, "Placed Running"},
		"complete":      {View{Size: 2, JobEnded: true}, Finished, "Finished"},
		"failed":        {View{Size: 2, JobEnded: true, JobFailed: true}, Failed, "Finished"},
	} {
		c.v.Observed = true
		s := Assess(c.v)
		holds := ""
		for _, cond := range s.Conditions {
			if cond.True && holds != "" {
				holds += " "
			}
			if cond.True {
				holds += cond.Type
			}
			if cond.Reason == "" || cond.Message == "" {
				t.Errorf("%s: condition %+v", name, cond)
			}
		}
		if s.Phase != c.want || holds != c.true {
			t.Errorf("%s: phase %s, true are %q", name, s.Phase, holds)
		}
	}
}
