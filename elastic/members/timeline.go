package members

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Moment is when the first or the last agent reached a point.
type Moment struct {
	At time.Time
	N  int
}

func (m *Moment) latest(t time.Time) {
	if !t.IsZero() {
		m.N++
		if t.After(m.At) {
			m.At = t
		}
	}
}

func (m *Moment) earliest(t time.Time) {
	if !t.IsZero() && (m.At.IsZero() || t.Before(m.At)) {
		m.At = t
	}
}

// Timeline is when the agents of a generation reached each point, by their clocks.
type Timeline struct {
	// Detected is the earliest time, each other one the latest.
	Detected, Halt, Stopped, Started, Restored, First Moment
	// Notified: some agent has reported when a rank restored or finished its first step; Keeps: some pod keeps state in memory.
	Notified, Keeps bool
	// Standbys counts ranks that were started in a warm standby.
	Standbys int
}

// Timeline returns the timeline of a generation in which all pods run ranks; false: a pod does not run them yet, or is ending or has ended
// them, so that its times belong to the next generation. came reports whether a pod is new in the generation, so that it had nothing to
// halt.
func (ms *Members) Timeline(generation int64, came func(Pod) bool) (Timeline, bool) {
	var l Timeline
	for _, m := range ms.Each {
		if !m.Current(generation) || m.report.State == protocol.StateFailed || m.report.State == protocol.StateHalted {
			return Timeline{}, false
		}
		t := &m.report.Timeline
		if t.HaltReceived.After(t.RunReceived) {
			return Timeline{}, false
		}
		l.Detected.earliest(t.Detected)
		if !came(m.pod) {
			l.Halt.latest(t.HaltReceived)
			l.Stopped.latest(t.Stopped)
		}
		l.Started.latest(t.Started)
		l.Restored.latest(t.Restored)
		l.First.latest(t.FirstStep)
		l.Notified = l.Notified || !t.Restored.IsZero() || !t.FirstStep.IsZero()
		l.Keeps = l.Keeps || m.report.StateBytes > 0
		for _, k := range m.report.Rank {
			if k.FromStandby {
				l.Standbys++
			}
		}
	}
	return l, true
}
