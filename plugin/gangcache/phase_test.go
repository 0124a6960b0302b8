package gangcache

import (
	"fmt"
	"testing"
)

// Plays every event in every phase.
func TestPhases(t *testing.T) {
	names := []string{"found", "resuming", "partial", "placing", "whole", "repairing"}
	for h, row := range map[happening][]phase{
		firstPlanOpened: {placing, placing, placing, placing, placing, placing},
		planOpened:      {resuming, resuming, placing, placing, repairing, repairing},
		planEnded:       {found, found, partial, partial, whole, whole},
		completed:       {whole, whole, whole, whole, whole, whole},
		stampsFound:     {partial, placing, partial, placing, whole, repairing},
		rolledBack:      {found, resuming, found, resuming, whole, repairing},
	} {
		for from, want := range row {
			if got := phase(from).next(h); got != want {
				t.Errorf("%s, happening %d: %s, want %s", names[from], h, names[got], names[want])
			}
		}
	}
	for p, want := range []string{"false false", "true false", "false true", "true true", "false false", "true false"} {
		if got := fmt.Sprint(phase(p).open(), " ", phase(p).initial()); got != want {
			t.Errorf("%s: open and initial are %s, want %s", names[p], got, want)
		}
	}
}
