package harness

import (
	"slices"
	"strings"
	"testing"
)

// TestBecame: one recovery replaces the pods of the given slots and changes nothing else.
func TestBecame(t *testing.T) {
	before := Shape{Generation: 3, Assignments: []Assignment{{"a", "1", "n1", "c1", 0}, {"b", "2", "n2", "c2", 0}}}
	replaced, restarted := Assignment{"b", "3", "n1", "c3", 0}, Assignment{"a", "1", "n1", "c4", 1}
	for name, c := range map[string]struct {
		generation  int64
		assignments []Assignment
		slots       []int
		want        string
	}{
		"nothing":             {4, before.Assignments, nil, ""},
		"one replaced":        {4, []Assignment{before.Assignments[0], replaced}, []int{1}, ""},
		"two recoveries":      {5, before.Assignments, nil, "generation 3 became 5"},
		"another one as well": {4, []Assignment{before.Assignments[0], replaced}, nil, "slot 1 was to stay"},
		"none replaced":       {4, before.Assignments, []int{1}, "pod b of slot 1 was not replaced"},
		"restarted":           {4, []Assignment{restarted, before.Assignments[1]}, nil, "the container of a was restarted 1 times"},
	} {
		err := before.Became(Shape{c.generation, c.assignments}, c.slots...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if on := before.On("n2"); !slices.Equal(on, []int{1}) {
		t.Errorf("on n2 are slots %v", on)
	}
}
