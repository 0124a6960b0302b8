package gang

import "testing"

func TestIncompleteSaysWhatIsAwaited(t *testing.T) {
	for _, c := range []struct {
		census  Census
		reason  string
		wanted  int
		message string
	}{
		{Census{Size: 2, Exist: 1}, WaitingForMembers, 2, "1 of 2 pods exist"},
		{Census{Size: 3, Exist: 2, Bound: 1}, MemberLost, 2, "2 of 3 pods exist, 1 on nodes: waiting for the others to be created again"},
		{Census{Size: 3, Exist: 2, Bound: 2, Gaps: []Gap{{Slot: 2}}}, MemberLost, 1, "2 of 3 pods exist, 2 on nodes: waiting for slot 2 to be created again"},
		{Census{Size: 3, Exist: 1, Bound: 1, Gaps: []Gap{{Slot: 0, Leaving: "g-0-x", Node: "n7"}, {Slot: 2}}}, MemberLost, 2,
			"1 of 3 pods exist, 1 on nodes: waiting for slots 0, 2 to be created again (pod g-0-x is still ending on node n7)"},
		{Census{Size: 8, Exist: 3, Bound: 3, Gaps: []Gap{{Slot: 1}, {Slot: 2}, {Slot: 3}, {Slot: 4}, {Slot: 6}}}, MemberLost, 5,
			"3 of 8 pods exist, 3 on nodes: waiting for slots 1, 2, 3 and 2 more to be created again"},
		{Census{Size: 3, Exist: 1, Bound: 1, Ended: 1, Gaps: []Gap{{Slot: 2}}}, MemberLost, 1, "1 of 3 pods exist, 1 ended well, 1 on nodes: waiting for slot 2 to be created again"},
	} {
		r := Incomplete(c.census)
		if r.Reason != c.reason || r.Wanted != c.wanted || r.Message != c.message {
			t.Errorf("%+v:\n got %s %d %q\nwant %s %d %q", c.census, r.Reason, r.Wanted, r.Message, c.reason, c.wanted, c.message)
		}
	}
}
