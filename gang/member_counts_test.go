package gang

import (
	"maps"
	"testing"
)

func TestIncompleteSaysWhatIsAwaited(t *testing.T) {
	for _, c := range []struct {
		memberCounts MemberCounts
		reason       string
		wanted       int
		message      string
	}{
		{MemberCounts{Size: 2, Exist: 1}, WaitingForMembers, 2, "1 of 2 pods exist"},
		{MemberCounts{Size: 3, Exist: 2, Bound: 1}, MemberLost, 2, "2 of 3 pods exist, 1 on nodes: waiting for the others to be re-created"},
		{MemberCounts{Size: 3, Exist: 2, Bound: 2, Gaps: []Gap{{Slot: 2}}}, MemberLost, 1, "2 of 3 pods exist, 2 on nodes: waiting for slot 2 to be re-created"},
		{MemberCounts{Size: 3, Exist: 1, Bound: 1, Gaps: []Gap{{Slot: 0, Terminating: "g-0-x", Node: "n7"}, {Slot: 2}}}, MemberLost, 2,
			"1 of 3 pods exist, 1 on nodes: waiting for slots 0, 2 to be re-created (pod g-0-x is still terminating on node n7)"},
		{MemberCounts{Size: 8, Exist: 3, Bound: 3, Gaps: []Gap{{Slot: 1}, {Slot: 2}, {Slot: 3}, {Slot: 4}, {Slot: 6}}}, MemberLost, 5,
			"3 of 8 pods exist, 3 on nodes: waiting for slots 1, 2, 3 and 2 more to be re-created"},
		{MemberCounts{Size: 3, Exist: 1, Bound: 1, Ended: 1, Gaps: []Gap{{Slot: 2}}}, MemberLost, 1, "1 of 3 pods exist, 1 succeeded, 1 on nodes: waiting for slot 2 to be re-created"},
	} {
		r := Incomplete(c.memberCounts)
		if r.Reason != c.reason || r.Wanted != c.wanted || r.Message != c.message {
			t.Errorf("%+v:\n got %s %d %q\nwant %s %d %q", c.memberCounts, r.Reason, r.Wanted, r.Message, c.reason, c.wanted, c.message)
		}
	}
}

// TestHeld: the present nodes of a gang's members decide which of its own spares it may use.
func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		on       []string
		want     map[string]int
		standing bool
	}{
		"nobody is placed":  {[]string{"", ""}, map[string]int{}, false},
		"two on one node":   {[]string{"a", "", "b", "a"}, map[string]int{"a": 2, "b": 1}, true},
		"there are no pods": {nil, map[string]int{}, false},
	} {
		g := Gang{}
		for _, node := range c.on {
			g.Members = append(g.Members, Member{Node: node})
		}
		if got := g.held(); !maps.Equal(got, c.want) || g.standing() != c.standing {
			t.Errorf("%s: %v, standing %v", name, got, g.standing())
		}
	}
}
