package membership

import "testing"

// TestNodeEnds: a pod that fails by itself, or that no node would admit, is no matter of its node.
func TestNodeEnds(t *testing.T) {
	for reason, want := range map[string]struct{ rejects, ends bool }{
		"OutOfcpu":                 {true, true},
		"OutOfnvidia.com/gpu":      {true, true},
		"UnexpectedAdmissionError": {true, true},
		"NodeAffinity":             {true, true},
		"Evicted":                  {false, true},
		"NodeShutdown":             {false, true},
		"Terminated":               {false, true},
		"DeadlineExceeded":         {false, false},
		"SysctlForbidden":          {false, false},
		"AppArmor":                 {false, false},
		"":                         {false, false},
	} {
		if Rejects(reason) != want.rejects || NodeEnds(reason) != want.ends {
			t.Errorf("%q: rejects %v, ends %v", reason, Rejects(reason), NodeEnds(reason))
		}
	}
}
