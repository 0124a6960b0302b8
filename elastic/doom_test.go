package elastic

import (
	"testing"
	"time"
)

// TestTimesOfADoom: what has to leave its place has the time that it was given first, however often it is told; how long pods of a
// suspended Job may be waited for is known only once they are deleted; and to rest and to be replaced are two things.
func TestTimesOfADoom(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	s := New(1, time.Minute, Record{})
	for i, tell := range []struct {
		cause    string
		deadline time.Duration // 0: none is named
		want     time.Duration
	}{
		{JobSuspended, 0, doomTime},
		{JobSuspended, 100 * time.Second, 100 * time.Second},
		{JobSuspended, 0, 100 * time.Second},
		{JobSuspended, 90 * time.Second, 90 * time.Second},
		{PodDeleted, 120 * time.Second, 120 * time.Second},
		{PodDeleted, 200 * time.Second, 120 * time.Second},
		{"GPUFellOff", 0, 120 * time.Second},
		{JobSuspended, 300 * time.Second, 300 * time.Second},
		{"GPUFellOff", 0, 8*time.Second + doomTime},
	} {
		d := Doom{Pod: "a", Name: "a", Cause: tell.cause}
		if tell.deadline > 0 {
			d.Deadline = start.Add(tell.deadline)
		}
		Step(s, Doomed{Pods: []Doom{d}}, start.Add(time.Duration(i)*time.Second))
		if len(s.Record.Doomed) != 1 || s.Record.Doomed[0].Cause != tell.cause {
			t.Fatalf("%d: doomed are %+v", i, s.Record.Doomed)
		}
		if got := s.Record.Doomed[0].Deadline.Sub(start); got != tell.want {
			t.Errorf("%d: %s has time until %s, want %s", i, tell.cause, got, tell.want)
		}
	}
}
