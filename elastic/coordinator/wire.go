package coordinator

import (
	"slices"
	"time"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
)

var states = map[coordinatorv1.State]elastic.AgentState{
	coordinatorv1.State_STATE_IDLE: elastic.AgentIdle, coordinatorv1.State_STATE_RUNNING: elastic.AgentRunning, coordinatorv1.State_STATE_FAILED: elastic.AgentFailed,
	coordinatorv1.State_STATE_HALTED: elastic.AgentHalted, coordinatorv1.State_STATE_FINISHED: elastic.AgentFinished,
}

var orders = map[elastic.Order]coordinatorv1.Order{
	elastic.OrderWait: coordinatorv1.Order_ORDER_WAIT, elastic.OrderRun: coordinatorv1.Order_ORDER_RUN,
	elastic.OrderHalt: coordinatorv1.Order_ORDER_HALT, elastic.OrderExit: coordinatorv1.Order_ORDER_EXIT,
}

// report is a message as the core knows it.
func report(m *coordinatorv1.Report) elastic.Report {
	t := m.GetTimeline()
	r := elastic.Report{
		Incarnation: m.GetIncarnation(), Ranks: int(m.GetRanks()), Address: m.GetAddress(), Port: int(m.GetPort()), Generation: int64(m.GetGeneration()),
		State: states[m.GetState()], StateBytes: int64(m.GetStateBytes()), Notes: m.GetNotes(), Refused: m.GetRefused(), Leaving: m.GetLeaving(),
		Timeline: elastic.Timeline{
			Detected: at(t.GetDetected()), HaltReceived: at(t.GetHaltReceived()), Stopped: at(t.GetStopped()), RunReceived: at(t.GetRunReceived()),
			Started: at(t.GetStarted()), Restored: at(t.GetRestored()), FirstStep: at(t.GetFirstStep()), Verified: at(t.GetVerified()),
		},
		Protocol: int(m.GetProtocol()), Storage: m.GetStorage(), Grace: time.Duration(m.GetGraceSeconds()) * time.Second,
		Manifested: mark(m.GetManifested()), FetchFailed: mark(m.GetFetchFailed()), Hold: int64(m.GetHold()),
		WholeCommand: m.GetWholeCommand(), LeftForLauncher: int64(m.GetLeftForLauncher()), Unprotected: m.GetUnprotected(), Containers: m.GetContainers(), Sequence: m.GetSequence(),
	}
	for _, k := range m.GetRank() {
		rank := elastic.Rank{Local: int(k.GetLocalRank()), Step: int64(k.GetStep()), StandbyReady: k.GetStandbyReady(), FromStandby: k.GetFromStandby(),
			OptimizerSteps: int64(k.GetOptimizerSteps()), ResumedAt: int64(k.GetResumedAt()), ResumeKnown: k.ResumedAt != nil}
		for _, step := range k.GetSealed() {
			rank.Sealed = append(rank.Sealed, int64(step))
		}
		slices.Sort(rank.Sealed)
		if e := k.GetExit(); e != nil {
			rank.Exit = &elastic.Exit{Code: int(e.GetCode()), Signal: int(e.GetSignal()), At: at(e.GetAt()), Traceback: e.GetTraceback()}
		}
		if c := k.GetCopied(); c != nil {
			rank.Copied = elastic.Copied{Mark: mark(c.GetMark()), Length: int64(c.GetLength()), Checksum: c.GetChecksum()}
		}
		r.Rank = append(r.Rank, rank)
	}
	return r
}

func mark(m *coordinatorv1.Mark) elastic.Mark {
	return elastic.Mark{Step: int64(m.GetStep()), Generation: int64(m.GetGeneration())}
}

func markMessage(m elastic.Mark) *coordinatorv1.Mark {
	if m == (elastic.Mark{}) {
		return nil
	}
	return &coordinatorv1.Mark{Step: uint64(m.Step), Generation: uint64(m.Generation)}
}

func at(nanos int64) time.Time {
	if nanos <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// directive is what the core wants as a message, in the agent's version of the protocol.
func directive(d elastic.Directive, version uint32) *coordinatorv1.Directive {
	m := &coordinatorv1.Directive{
		Protocol: version, Generation: uint64(d.Generation), Order: orders[d.Order],
		Common: uint64(d.Common), Frontier: uint64(d.Frontier), ExitCode: int32(d.ExitCode), Reason: d.Reason,
	}
	if r := d.Run; r != nil {
		m.Run = &coordinatorv1.Generation{
			Number: uint64(r.Number), WorldSize: uint32(r.WorldSize), BaseRank: uint32(r.BaseRank), NodeRank: uint32(r.NodeRank), Nodes: uint32(r.Nodes),
			MasterAddr: r.MasterAddr, MasterPort: uint32(r.MasterPort), RestoreStep: uint64(r.RestoreStep), RestartCount: uint32(r.RestartCount),
		}
	}
	if version < 2 {
		return m
	}
	m.WholeCommand, m.Launched = d.WholeCommand, d.Launched
	m.Hold, m.Copy, m.Fetch = uint64(d.Hold), markMessage(d.Copy), markMessage(d.Fetch)
	if d.Manifest != nil {
		m.Manifest = &coordinatorv1.Manifest{Mark: markMessage(d.Manifest.Mark)}
		for _, k := range d.Manifest.Ranks {
			m.Manifest.Rank = append(m.Manifest.Rank, &coordinatorv1.ManifestRank{Length: uint64(k.Length), Checksum: k.Checksum})
		}
		for _, o := range d.Manifest.Recorded {
			m.Manifest.Recorded = append(m.Manifest.Recorded, markMessage(o))
		}
	}
	return m
}
