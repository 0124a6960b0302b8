// Package wire converts values of package protocol to the messages of api/coordinator/v1, and back, without loss.
// Adapters call it, so that the cores do not link protobuf.
package wire

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

var states = map[protocol.AgentState]v1.State{
	protocol.StateIdle: v1.State_STATE_IDLE, protocol.StateRunning: v1.State_STATE_RUNNING, protocol.StateFailed: v1.State_STATE_FAILED,
	protocol.StateHalted: v1.State_STATE_HALTED, protocol.StateFinished: v1.State_STATE_FINISHED,
}

func state(m v1.State) protocol.AgentState {
	for s, of := range states {
		if of == m {
			return s
		}
	}
	return protocol.StateUnknown
}

// Report converts a message.
func Report(m *v1.Report) protocol.Report {
	t := m.GetTimeline()
	r := protocol.Report{
		Protocol:    int(m.GetProtocol()),
		Incarnation: m.GetIncarnation(),
		Sequence:    m.GetSequence(),
		Containers:  m.GetContainers(),
		Ranks: int(
			m.GetRanks(),
		),
		Address:     m.GetAddress(),
		Port:        int(m.GetPort()),
		Generation:  int64(m.GetGeneration()),
		State:       state(m.GetState()),
		StateBytes:  m.GetStateBytes(),
		Notes:       m.GetNotes(),
		Refused:     m.GetRefused(),
		Terminating: m.GetTerminating(),
		Timeline: protocol.Timeline{
			Detected: at(t.GetDetected()), HaltReceived: at(t.GetHaltReceived()), Stopped: at(t.GetStopped()), RunReceived: at(t.GetRunReceived()),
			Started: at(t.GetStarted()), Restored: at(t.GetRestored()), FirstStep: at(t.GetFirstStep()), Verified: at(t.GetVerified()),
		},
		Storage:  m.GetStorage(),
		Grace:    time.Duration(m.GetGraceSeconds()) * time.Second,
		CopyTook: time.Duration(m.GetCopyMs()) * time.Millisecond,
		Manifested: mark(
			m.GetManifested(),
		),
		FetchFailed:  mark(m.GetFetchFailed()),
		BarrierStep:  int64(m.GetBarrierStep()),
		WholeCommand: m.GetWholeCommand(),
		LeftForLauncher: int64(
			m.GetLeftForLauncher(),
		),
		Unprotected:  m.GetUnprotected(),
		ModulesKnown: int(m.GetModulesKnown()),
		Modules:      m.GetModules(),
		Launch: int(
			m.GetLaunch(),
		),
		Returned:  int(m.GetReturned()),
		Waited:    int(m.GetWaited()),
		WaitedFor: time.Duration(m.GetWaitedMs()) * time.Millisecond,
		Look:      int64(m.GetLook()),
		Kept:      int64(m.GetKept()),
		Shrinks:   m.GetShrinks(),
	}
	r.Trials = trialAnswers(m.GetTrials())
	for _, l := range m.GetLooks() {
		r.Looks = append(r.Looks, look(l))
	}
	for _, k := range m.GetRank() {
		r.Rank = append(r.Rank, rank(k))
	}
	if m.MaxRestarts != nil {
		n := int(m.GetMaxRestarts())
		r.MaxRestarts = &n
	}
	return r
}

func rank(m *v1.Rank) protocol.Rank {
	r := protocol.Rank{
		Local: int(
			m.GetLocalRank(),
		), Sealed: points(m.GetSealed(), m.GetSealedBranch()), Step: int64(m.GetStep()), StandbyReady: m.GetStandbyReady(),
		PID: int(m.GetPid()), FromStandby: m.GetFromStandby(), Copied: protocol.Copied{Mark: mark(m.GetCopied().GetMark()),
			Length: m.GetCopied().GetLength(), Checksum: m.GetCopied().GetChecksum()},
		OptimizerSteps: int64(m.GetOptimizerSteps()), ResumedAt: int64(m.GetResumedAt()), ResumeKnown: m.ResumedAt != nil,
		Span: int(m.GetSpan()), Grouped: m.GetGrouped(),
	}
	if c := m.GetSaves(); c != nil {
		r.Saves = &protocol.Saves{
			Copied:     c.GetCopied(),
			Overlapped: c.GetOverlapped(),
			Dropped:    c.GetDropped(),
			Skipped:    c.GetSkipped(),
			Refused:    c.GetRefused(),
		}
	}
	if e := m.GetExit(); e != nil {
		r.Exit = &protocol.Exit{
			Code:      int(e.GetCode()),
			Signal:    int(e.GetSignal()),
			At:        at(e.GetAt()),
			Traceback: e.GetTraceback(),
			Restoring: e.GetRestoring(),
		}
	}
	return r
}

// ReportMessage converts a report to a message.
func ReportMessage(r protocol.Report) *v1.Report {
	t := r.Timeline
	m := &v1.Report{
		Protocol: uint32(r.Protocol), Incarnation: r.Incarnation, Sequence: r.Sequence, Containers: r.Containers,
		Ranks: uint32(r.Ranks), Address: r.Address, Port: uint32(r.Port), Generation: uint64(r.Generation), State: states[r.State],
		StateBytes: r.StateBytes, Notes: r.Notes, Refused: r.Refused, Terminating: r.Terminating,
		Timeline: &v1.Timeline{
			Detected: nanos(t.Detected), HaltReceived: nanos(t.HaltReceived), Stopped: nanos(t.Stopped), RunReceived: nanos(t.RunReceived),
			Started: nanos(t.Started), Restored: nanos(t.Restored), FirstStep: nanos(t.FirstStep), Verified: nanos(t.Verified),
		},
		Storage: r.Storage, GraceSeconds: uint32(r.Grace / time.Second), CopyMs: uint32(r.CopyTook.Milliseconds()),
		Manifested: markMessage(
			r.Manifested,
		), FetchFailed: markMessage(r.FetchFailed), BarrierStep: uint64(r.BarrierStep), WholeCommand: r.WholeCommand,
		LeftForLauncher: uint64(r.LeftForLauncher), Unprotected: r.Unprotected, ModulesKnown: uint32(r.ModulesKnown), Modules: r.Modules,
		Launch: uint32(r.Launch), Returned: uint32(r.Returned), Waited: uint32(r.Waited), WaitedMs: uint32(r.WaitedFor.Milliseconds()),
		Look: uint64(r.Look), Kept: uint64(r.Kept), Shrinks: r.Shrinks,
	}
	m.Trials = trialAnswerMessages(r.Trials)
	for i := range r.Looks {
		m.Looks = append(m.Looks, lookMessage(&r.Looks[i]))
	}
	for i := range r.Rank {
		m.Rank = append(m.Rank, rankMessage(&r.Rank[i]))
	}
	if r.MaxRestarts != nil {
		n := uint32(*r.MaxRestarts)
		m.MaxRestarts = &n
	}
	return m
}

func rankMessage(r *protocol.Rank) *v1.Rank {
	m := &v1.Rank{
		LocalRank: uint32(r.Local), Step: uint64(r.Step), StandbyReady: r.StandbyReady,
		Pid: int32(r.PID), FromStandby: r.FromStandby, OptimizerSteps: uint64(r.OptimizerSteps),
		Span: uint32(r.Span), Grouped: r.Grouped,
	}
	m.Sealed, m.SealedBranch = pointNumbers(r.Sealed)
	if e := r.Exit; e != nil {
		m.Exit = &v1.Exit{Code: int32(e.Code), Signal: int32(e.Signal), At: nanos(e.At), Traceback: e.Traceback, Restoring: e.Restoring}
	}
	if c := r.Copied; c.Mark != (protocol.Mark{}) {
		m.Copied = &v1.Copied{Mark: markMessage(c.Mark), Length: c.Length, Checksum: c.Checksum}
	}
	if r.ResumeKnown {
		resumedAt := uint64(r.ResumedAt)
		m.ResumedAt = &resumedAt
	}
	if c := r.Saves; c != nil {
		m.Saves = &v1.Saves{Copied: c.Copied, Overlapped: c.Overlapped, Dropped: c.Dropped, Skipped: c.Skipped, Refused: c.Refused}
	}
	return m
}

func mark(m *v1.Mark) protocol.Mark {
	return protocol.Mark{Step: int64(m.GetStep()), Generation: int64(m.GetGeneration()), Branch: int64(m.GetBranch())}
}

func markMessage(m protocol.Mark) *v1.Mark {
	if m == (protocol.Mark{}) {
		return nil
	}
	return &v1.Mark{Step: uint64(m.Step), Generation: uint64(m.Generation), Branch: uint64(m.Branch)}
}

// at returns the time of that many nanoseconds; 0: the zero time.
func at(nanos int64) time.Time {
	if nanos <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// points combines steps with their branches. If there are fewer branches, the remaining ones are unknown.
func points(steps, branches []uint64) []protocol.Point {
	var out []protocol.Point
	for i, step := range steps {
		p := protocol.Point{Step: int64(step)}
		if i < len(branches) {
			p.Branch = int64(branches[i])
		}
		out = append(out, p)
	}
	protocol.ByStep(out)
	return out
}

// pointNumbers returns the fields of points: no branches if all are of the first.
func pointNumbers(points []protocol.Point) (steps, branches []uint64) {
	later := false
	for _, p := range points {
		steps, branches, later = append(steps, uint64(p.Step)), append(branches, uint64(p.Branch)), later || p.Branch > 0
	}
	if !later {
		branches = nil
	}
	return steps, branches
}
