package ckptagent

import (
	"testing"
	"time"
)

func TestImportsSettle(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name             string
		count, announced int
		stepped          bool
		changed, quiet   float64 // the first time at which the list is stable
	}{
		{"two seconds after the first step", 900, 0, true, 3, 5},
		{"without a step: ten seconds of running", 900, 0, false, 1, 10},
		{"and five of quiet", 900, 0, false, 8, 13},
		{"imports that never end are taken as they are", 900, 0, true, 39, 40},
		{"nothing is imported", 0, 0, true, 0, -1},
		{"a few more are not worth it", 920, 900, true, 3, -1},
		{"one of twenty more is, when they are quiet again", 946, 900, true, 30, 32},
		{"of a short list, more than twenty", 51, 30, true, 30, 32},
		{"not more than twenty", 50, 30, true, 30, -1},
		{"more, without a step", 946, 900, false, 30, 35},
		{"more and more, after it was settled once", 946, 900, true, 50, 52},
	} {
		i := Imports{Count: c.count, Began: at(0), Changed: at(c.changed), Stepped: c.stepped, Published: c.announced}
		first := -1.0
		for s := c.changed; s < 120 && first < 0; s += 0.5 {
			if i.Settled(at(s)) {
				first = s
			}
		}
		if first != c.quiet {
			t.Errorf("%s: settled at %v, want %v", c.name, first, c.quiet)
		}
	}
}

// TestMemoryOfImports: Memory estimates what the imports of a rank take. If half of the modules were seen before the model was, Memory does
// not count the model's memory.
func TestMemoryOfImports(t *testing.T) {
	for name, c := range map[string]struct {
		took []Took
		want uint64
	}{
		"nothing was seen":                     {nil, 0},
		"the end of its memory cannot be read": {[]Took{{100, 0}}, 0},
		"at once":                              {[]Took{{100, 300}}, 300},
		"the beginning says nothing":           {[]Took{{10, 5}, {90, 290}, {100, 300}}, 300},
		"late imports, beside a model":         {[]Took{{10, 5}, {80, 300}, {90, 20_000}, {100, 28_000}}, 375},
		"half of them late":                    {[]Took{{40, 200}, {50, 300}, {100, 28_000}}, 600},
		"a model before half of them":          {[]Took{{40, 200}, {60, 27_000}, {100, 28_000}}, 28_000},
	} {
		if got := (Imports{Count: 100, Took: c.took}).Memory(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
