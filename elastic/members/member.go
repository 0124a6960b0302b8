package members

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

// Member is the state of a slot, from its agent's last report.
type Member struct {
	known    bool
	attached bool
	pod      Pod
	report   protocol.Report
	// ranIn is the newest generation that this pod reported as run, restartedIn the one in which its container restarted with its agent.
	ranIn, restartedIn int64
	// worked: a rank of this pod has finished a step of the gang's launcher, as reported to this coordinator.
	worked bool
	// terminatingAt is when the agent first reported that the pod is being shut down.
	terminatingAt time.Time
	// failed are the newest failed fetches of this pod (noteFailed).
	failed []protocol.Mark
	saves  savesSeen
}

// Known reports whether the agent of the slot's pod has reported to this coordinator.
func (m *Member) Known() bool { return m.known }

// Attached reports whether the agent is connected; then it has reported.
func (m *Member) Attached() bool { return m.attached }

// Pod returns the pod that holds the slot; the zero Pod: unknown.
func (m *Member) Pod() Pod { return m.pod }

// Report returns the newest report that counts; callers must not change it.
func (m *Member) Report() *protocol.Report { return &m.report }

// Is reports whether the pod is the known holder of the slot.
func (m *Member) Is(pod string) bool { return m.pod.UID == pod }

// RecordRepeat reports whether a report repeats the last one, and records its sequence number.
func (m *Member) RecordRepeat(r *protocol.Report) bool {
	if !m.attached {
		return false
	}
	old := m.report
	if old.Sequence = r.Sequence; !reflect.DeepEqual(old, *r) {
		return false
	}
	m.report.Sequence = r.Sequence
	return true
}

// Ran reports whether ranks of the agent's generation were started.
func Ran(a protocol.AgentState) bool {
	return a == protocol.StateRunning || a == protocol.StateFailed || a == protocol.StateFinished
}

// Current reports whether the report is about ranks of the newest generation.
func (m *Member) Current(generation int64) bool {
	return m.known && m.report.Generation == generation &&
		(Ran(m.report.State) || m.report.State == protocol.StateHalted && m.RanIn(generation))
}

// RanIn reports whether the pod has reported that it ran a generation.
func (m *Member) RanIn(generation int64) bool { return m.ranIn > 0 && m.ranIn == generation }

// Stepped reports whether a rank of the pod has finished a step of its own in a generation that restored a step; below 0: that one is
// unknown. If the pod keeps state in memory, one optimizer step may be only a part of a step.
func (m *Member) Stepped(generation, restored int64) bool {
	r, least := &m.report, int64(1)
	if r.StateBytes > 0 {
		least = 2
	}
	return m.known && r.Generation == generation && (!r.Timeline.FirstStep.IsZero() || slices.ContainsFunc(r.Rank, func(k protocol.Rank) bool {
		return k.OptimizerSteps >= least || restored >= 0 && k.Step > restored
	}))
}

// Worked reports whether a rank of the pod is known to have finished a step of the gang's launcher.
func (m *Member) Worked() bool { return m.worked }

// RestartedIn reports whether the pod's whole container restarted while a generation was the newest.
func (m *Member) RestartedIn(generation int64) bool { return m.restartedIn == generation }

// Halted reports whether every process of a generation on this pod is gone and its inventory is final.
func (m *Member) Halted(generation int64) bool {
	return m.known && m.report.State == protocol.StateHalted && m.report.Generation >= generation
}

// Finished reports whether every rank of a generation on this pod has ended with exit code 0.
func (m *Member) Finished(generation int64) bool {
	return m.known && m.report.State == protocol.StateFinished && m.report.Generation == generation
}

// Drains reports whether the agent can receive a barrier step of a generation and reports its ranks' progress.
func (m *Member) Drains(generation int64) bool { return m.attached && m.Current(generation) }

// EndedItself reports whether a terminating pod has ended its ranks without an order.
func (m *Member) EndedItself(generation int64) bool {
	t := &m.report.Timeline
	return m.known && m.report.Terminating && m.Halted(generation) && !t.HaltReceived.After(t.RunReceived)
}

// Passes reports whether the pod's launcher can return by its number when all have finished: the command may start another launcher.
func (m *Member) Passes() bool { return !m.known || m.report.Launch > 0 && !m.report.WholeCommand }

// GraceEnds returns until when the coordinator may wait for a terminating pod's state; the pod needs the rest of its grace period to end
// its processes. False: the pod does not terminate.
func (m *Member) GraceEnds() (time.Time, bool) {
	grace := cmp.Or(m.report.Grace, protocol.DefaultGrace)
	return m.terminatingAt.Add(grace - protocol.ShutdownMargin(grace)), !m.terminatingAt.IsZero()
}

// UsesStorage reports whether the pod runs a generation and can write to storage.
func (m *Member) UsesStorage(generation int64) bool {
	return m.Drains(generation) && Ran(m.report.State) && m.report.Storage && m.report.Ranks > 0
}

// Wrote reports whether every rank of the pod has copied this step.
func (m *Member) Wrote(mark protocol.Mark) bool {
	return len(m.report.Rank) == m.report.Ranks &&
		!slices.ContainsFunc(m.report.Rank, func(k protocol.Rank) bool { return k.Copied.Mark != mark })
}

// CanWrite reports whether every rank of the pod has copied this step or still holds it.
func (m *Member) CanWrite(mark protocol.Mark) bool {
	return !slices.ContainsFunc(
		m.report.Rank,
		func(k protocol.Rank) bool { return k.Copied.Mark != mark && !restore.Holds(k.Sealed, mark.Point()) },
	)
}

// CanSave reports whether a halted pod can copy a step to storage before it is deleted.
func (m *Member) CanSave(generation int64, mark protocol.Mark) bool {
	return m.attached && m.report.Storage && m.Halted(generation) && m.CanWrite(mark)
}

// holdsAll reports whether every rank of the pod holds a step; a rank that the agent does not report holds none.
func (m *Member) holdsAll(step int64) bool {
	for i := range m.report.Rank {
		if m.report.Rank[i].Local != i || !m.report.Rank[i].Holds(step) {
			return false
		}
	}
	return len(m.report.Rank) >= m.report.Ranks
}

// FailedFetches returns the number of stored failed fetches of the pod.
func (m *Member) FailedFetches() int { return len(m.failed) }

// FailedFetch reports whether the pod failed to fetch a step.
func (m *Member) FailedFetch(mark protocol.Mark) bool { return slices.Contains(m.failed, mark) }

// MaxFailedFetches limits the stored failed fetches of a pod. An agent is ordered to fetch only recorded steps of its own ranks:
// restore.MostWhole steps of all ranks, and one that was copied before their pod was replaced.
const MaxFailedFetches = 16

// noteFailed stores the newest failed fetches of the pod. A dropped one is ordered again, fails again and is stored again. No generation
// starts from it meanwhile, because a step that is still to be fetched does not count as held.
func (m *Member) noteFailed(f protocol.Mark) {
	if f == (protocol.Mark{}) || slices.Contains(m.failed, f) {
		return
	}
	if len(m.failed) >= MaxFailedFetches {
		m.failed = slices.Delete(m.failed, 0, len(m.failed)-MaxFailedFetches+1)
	}
	m.failed = append(m.failed, f)
}

// before reports whether the agent that sent known had sent this report before it.
func before(r, known *protocol.Report) bool {
	return cmp.Or(cmp.Compare(r.Incarnation, known.Incarnation), cmp.Compare(r.Sequence, known.Sequence)) < 0
}
