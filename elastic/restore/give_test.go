package restore

import (
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestGive: which pods of a gang get their state from others, and the step that it restores then.
func TestGive(t *testing.T) {
	pod := func(held ...[]protocol.Point) Pod { return Pod{Ranks: 2, Held: held} }
	both := func(held ...protocol.Point) Pod { return pod(held, held) }
	later := func(step int64) protocol.Point { return protocol.Point{Branch: 1, Step: step} }
	old := func(step int64) protocol.Point { return protocol.Point{Step: step} }
	gone := pod(first(4, 5), first(4, 5))
	gone.Gone = true
	back := Line{}.Begin(1, 4) // training went back to step 4: later steps of the first branch are given up
	for name, c := range map[string]struct {
		pods  []Pod
		line  Line
		given []int
		want  protocol.Point
	}{
		"all hold a step":                   {[]Pod{pod(first(4, 5), first(4, 5)), pod(first(4, 5, 6), first(4, 5, 6))}, nil, nil, old(5)},
		"one is new":                        {[]Pod{pod(first(4, 5), first(4, 5)), pod(nil, nil)}, nil, []int{1}, old(5)},
		"one is gone":                       {[]Pod{gone, pod(first(4, 5), first(4, 5))}, nil, []int{0}, old(5)},
		"a rank of the new one has saved":   {[]Pod{pod(first(4, 5), first(4, 5)), pod(first(6), nil)}, nil, []int{1}, old(5)},
		"its ranks have saved other steps":  {[]Pod{both(first(4, 5, 6)...), pod(first(6), first(7)), both(first(4, 5, 6)...)}, nil, []int{1}, old(6)},
		"a slot that takes no part is none": {[]Pod{{}, pod(first(4), first(4))}, nil, nil, old(4)},
		"none holds a step":                 {[]Pod{pod(nil, nil), pod(nil, nil)}, nil, nil, protocol.Point{}},

		"most hold a step that was given up":      {[]Pod{both(later(5)), both(old(5)), both(old(5))}, back, []int{1, 2}, later(5)},
		"a newer step was given up":               {[]Pod{both(old(4)), both(old(4), old(9))}, back, nil, old(4)},
		"one holds the step before, most do not":  {[]Pod{both(old(9)), both(old(9)), both(old(4))}, back, []int{0, 1}, old(4)},
		"all hold only what was given up":         {[]Pod{both(old(8)), both(old(9))}, back, nil, protocol.Point{}},
		"a rank of a pod holds only the other's":  {[]Pod{pod([]protocol.Point{later(5)}, []protocol.Point{old(5)}), both(later(5))}, back, []int{0}, later(5)},
		"most share only what was given up":       {[]Pod{both(old(3), old(9)), both(old(4), old(9)), both(later(5))}, back, []int{0, 1}, later(5)},
		"the newest branch decides, where equal":  {[]Pod{both(old(4)), both(later(5))}, back, []int{0}, later(5)},
		"the step that most hold on the new line": {[]Pod{both(later(5)), both(later(5), later(6)), both(old(7))}, back, []int{2}, later(5)},
	} {
		Give(c.pods, c.line, 1)
		var given []int
		for i := range c.pods {
			if c.pods[i].Given {
				given = append(given, i)
			}
		}
		if got := Find(c.pods, Stored{}, c.line); !slices.Equal(given, c.given) || got.Point != c.want || len(got.Fetch) > 0 {
			t.Errorf("%s: given %v, restores %+v; want %v and %v", name, given, got, c.given, c.want)
		}
	}
}

// TestNewest: the newest step of a pod is one on the line, in the memory of all its ranks.
func TestNewest(t *testing.T) {
	p := Pod{Ranks: 2, Held: [][]protocol.Point{first(3, 4, 8, 9), first(4, 8)}}
	if got := p.Newest(nil); got.Step != 8 {
		t.Errorf("the newest step is %v, want 8", got)
	}
	if got := p.Newest(Line{}.Begin(1, 6)); got.Step != 4 {
		t.Errorf("the newest step that was not given up is %v, want 4", got)
	}
}
