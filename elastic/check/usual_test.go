package check

import (
	"maps"
	"testing"
)

// TestMedians: a model has a usual speed once enough nodes have one; what was not measured does not count.
func TestMedians(t *testing.T) {
	few := []Usual{{Alone: 1, Pair: 5}, {Alone: 2}, {Alone: 3, Pair: 5}}
	got := Medians(map[string][]Usual{"A": few, "B": append(few, Usual{Alone: 4, Pair: 5}), "C": append(few, few...)})
	want := map[string]Usual{"B": {Alone: 3}, "C": {Alone: 2, Pair: 5}}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
