package elastic

import (
	"testing"
	"time"
)

// TestTimesOfATermination: what has to leave its place has the time that it was given first, however often it is told; how long pods of a
// suspended Job may be waited for is known only once they are deleted; and to be suspended and to be replaced are two things.
func TestTimesOfATermination(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	s := New(1, time.Minute, Record{Generation: 1}) // before that a pod is replaced at once
	for i, tell := range []struct {
		cause    string
		deadline time.Duration // 0: none is named
		want     time.Duration
	}{
		{JobSuspended, 0, terminationTime},
		{JobSuspended, 100 * time.Second, 100 * time.Second},
		{JobSuspended, 0, 100 * time.Second},
		{JobSuspended, 90 * time.Second, 90 * time.Second},
		{PodDeleted, 120 * time.Second, 120 * time.Second},
		{PodDeleted, 200 * time.Second, 120 * time.Second},
		{"GPUFellOff", 0, 120 * time.Second},
		{JobSuspended, 300 * time.Second, 300 * time.Second},
		{"GPUFellOff", 0, 8*time.Second + terminationTime},
	} {
		d := Termination{Pod: "a", Name: "a", Cause: tell.cause}
		if tell.deadline > 0 {
			d.Deadline = start.Add(tell.deadline)
		}
		Step(s, level([]Termination{d}), start.Add(time.Duration(i)*time.Second))
		if len(s.terminations()) != 1 || s.terminations()[0].Cause != tell.cause {
			t.Fatalf("%d: pending are %+v", i, s.terminations())
		}
		if got := s.terminations()[0].Deadline.Sub(start); got != tell.want {
			t.Errorf("%d: %s has time until %s, want %s", i, tell.cause, got, tell.want)
		}
	}
}
