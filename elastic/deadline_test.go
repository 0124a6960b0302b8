package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestNoPodIsWaitedForLongerThanItTrains: the agent of a pod that was told to end trains on until it needs the rest of its grace.
func TestNoPodIsWaitedForLongerThanItTrains(t *testing.T) {
	notified := time.Unix(1000, 0)
	for grace, want := range map[time.Duration]time.Duration{0: 24 * time.Second, 2 * time.Second: 0, 5 * time.Second: 2 * time.Second, 10 * time.Second: 7 * time.Second,
		15 * time.Second: 12 * time.Second, 100 * time.Second: 80 * time.Second} {
		s := New(1, 0, Record{})
		s.members.Take(0, Pod{UID: "a"}, &protocol.Report{Terminating: true, Grace: grace}, 0, notified)
		if got := s.deadline(Termination{Pod: "a", Deadline: notified.Add(time.Hour)}).Sub(notified); got != want {
			t.Errorf("grace %s: waited for %s, want %s", grace, got, want)
		}
	}
}
