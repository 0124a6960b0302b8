package protocol

import (
	"reflect"
	"slices"
	"testing"
)

// TestRanges: ranges list the same ranks in the same order. Evenly spaced ranks need few ranges.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  []RankRange
	}{
		{nil, nil},
		{[]int{7}, []RankRange{{First: 7, Count: 1}}},
		{[]int{0, 1, 2, 3}, []RankRange{{First: 0, Count: 4, Step: 1}}},
		{[]int{1, 9, 17}, []RankRange{{First: 1, Count: 3, Step: 8}}},
		{[]int{3, 2, 1, 8, 9}, []RankRange{{First: 3, Count: 3, Step: -1}, {First: 8, Count: 2, Step: 1}}},
		{[]int{5, 5}, []RankRange{{First: 5, Count: 2}}},
	} {
		g := GroupLook{Ranks: Ranges(c.ranks)}
		if got := slices.Collect(g.Members(64)); !reflect.DeepEqual(g.Ranks, c.want) || !slices.Equal(got, c.ranks) {
			t.Errorf("%v become %+v, which yield %v", c.ranks, g.Ranks, got)
		}
	}
}

// TestMembersAreBounded: ranks outside of the world are left out, and a range that is too long ends with the world.
func TestMembersAreBounded(t *testing.T) {
	const most = 1 << 60
	g := GroupLook{Ranks: []RankRange{{First: -1, Count: 2, Step: 1}, {First: 2, Count: most}, {First: 3, Count: most, Step: 1}}}
	if got := slices.Collect(g.Members(4)); !slices.Equal(got, []int{0, 2, 2}) {
		t.Errorf("members of a world of 4: %v", got)
	}
}
