package restore

import (
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestGive: which pods of a gang get their state from others, and the step that it restores then.
func TestGive(t *testing.T) {
	pod := func(held ...[]protocol.Point) Pod { return Pod{Ranks: 2, Held: held} }
	gone := pod(first(4, 5), first(4, 5))
	gone.Gone = true
	for name, c := range map[string]struct {
		pods  []Pod
		given []int
		step  int64
	}{
		"all hold a step":                   {[]Pod{pod(first(4, 5), first(4, 5)), pod(first(4, 5, 6), first(4, 5, 6))}, nil, 5},
		"one is new":                        {[]Pod{pod(first(4, 5), first(4, 5)), pod(nil, nil)}, []int{1}, 5},
		"one is gone":                       {[]Pod{gone, pod(first(4, 5), first(4, 5))}, []int{0}, 5},
		"a rank of the new one has saved":   {[]Pod{pod(first(4, 5), first(4, 5)), pod(first(6), nil)}, []int{1}, 5},
		"its ranks have saved other steps":  {[]Pod{pod(first(4, 5, 6), first(4, 5, 6)), pod(first(6), first(7)), pod(first(4, 5, 6), first(4, 5, 6))}, []int{1}, 6},
		"a slot that takes no part is none": {[]Pod{{}, pod(first(4), first(4))}, nil, 4},
		"none holds a step":                 {[]Pod{pod(nil, nil), pod(nil, nil)}, []int{0, 1}, 0},
	} {
		Give(c.pods)
		var given []int
		for i := range c.pods {
			if c.pods[i].Given {
				given = append(given, i)
			}
		}
		if got := Find(c.pods, Stored{}, nil); !slices.Equal(given, c.given) || got.Step != c.step || len(got.Fetch) > 0 {
			t.Errorf("%s: given %v, restores %+v; want %v and %d", name, given, got, c.given, c.step)
		}
	}
}
