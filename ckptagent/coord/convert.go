package coord

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent"
)

// protocol is the version of the conversation that is spoken here.
const protocol = 2

var states = map[ckptagent.Phase]v1.State{
	ckptagent.Idle: v1.State_STATE_IDLE, ckptagent.Running: v1.State_STATE_RUNNING, ckptagent.Failed: v1.State_STATE_FAILED,
	ckptagent.Halted: v1.State_STATE_HALTED, ckptagent.Finished: v1.State_STATE_FINISHED,
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func toReport(r ckptagent.Report, address string) *v1.Report {
	t := r.Timeline
	out := &v1.Report{
		Protocol: protocol, Incarnation: r.Incarnation, Ranks: uint32(r.Ranks), Address: address, Port: uint32(r.Port),
		Generation: r.Generation, State: states[r.State], StateBytes: r.StateBytes, Notes: r.Notes, Refused: r.Refused, Leaving: r.Leaving,
		Timeline: &v1.Timeline{
			Detected: nanos(t.Detected), HaltReceived: nanos(t.HaltReceived), Stopped: nanos(t.Stopped), RunReceived: nanos(t.RunReceived),
			Started: nanos(t.Started), Restored: nanos(t.Restored), FirstStep: nanos(t.FirstStep), Verified: nanos(t.Verified),
		},
	}
	for i, rank := range r.Rank {
		p := &v1.Rank{
			LocalRank: uint32(i), Sealed: rank.Sealed, Step: rank.Step, StandbyReady: rank.StandbyReady, Pid: int32(rank.PID), FromStandby: rank.FromStandby,
		}
		if e := rank.Exit; e != nil {
			p.Exit = &v1.Exit{Code: int32(e.Code), Signal: int32(e.Signal), At: nanos(e.At), Traceback: e.Traceback}
		}
		if rank.Copied.Mark.Step != 0 {
			p.Copied = &v1.Copied{Mark: toMark(rank.Copied.Mark), Length: rank.Copied.Length, Checksum: rank.Copied.Checksum}
		}
		p.OptimizerSteps = rank.OptimizerSteps
		if rank.ResumeKnown {
			p.ResumedAt = &rank.ResumedAt
		}
		out.Rank = append(out.Rank, p)
	}
	out.Storage, out.GraceSeconds, out.CopyMs = r.Storage, uint32(r.Grace/time.Second), uint32(r.CopyTook.Milliseconds())
	out.Manifested, out.FetchFailed, out.Hold = toMark(r.Manifested), toMark(r.FetchFailed), r.Hold
	out.WholeCommand, out.Unprotected = r.WholeCommand, r.Unprotected
	out.LeftForLauncher, out.Containers = r.LeftForLauncher, r.Containers
	out.ModulesKnown, out.Modules = uint32(r.ModulesKnown), r.Modules
	return out
}

func toMark(m ckptagent.Mark) *v1.Mark {
	if m.Step == 0 {
		return nil
	}
	return &v1.Mark{Step: m.Step, Generation: m.Generation}
}

func fromMark(m *v1.Mark) ckptagent.Mark {
	return ckptagent.Mark{Step: m.GetStep(), Generation: m.GetGeneration()}
}

func fromDirective(d *v1.Directive) ckptagent.Directive {
	out := ckptagent.Directive{
		Generation: d.GetGeneration(), Order: ckptagent.Order(d.GetOrder()), Common: d.GetCommon(), Frontier: d.GetFrontier(),
		ExitCode: int(d.GetExitCode()), Reason: d.GetReason(),
	}
	if r := d.GetRun(); r != nil {
		out.Run = ckptagent.Run{
			Number: r.GetNumber(), WorldSize: int(r.GetWorldSize()), BaseRank: int(r.GetBaseRank()), NodeRank: int(r.GetNodeRank()),
			Nodes: int(r.GetNodes()), MasterAddr: r.GetMasterAddr(), MasterPort: int(r.GetMasterPort()), RestoreStep: r.GetRestoreStep(),
			RestartCount: int(r.GetRestartCount()),
		}
	} else if out.Order == ckptagent.OrderRun {
		out.Order = ckptagent.OrderWait // nothing to run in it
	}
	if d.GetProtocol() < protocol {
		return out // of what came with version 2 nothing is meant
	}
	out.Hold, out.Copy, out.Fetch = d.GetHold(), fromMark(d.GetCopy()), fromMark(d.GetFetch())
	out.WholeCommand, out.Launched = d.GetWholeCommand(), d.GetLaunched()
	out.WantModules, out.Modules = d.GetWantModules(), d.GetModules()
	if m := d.GetManifest(); m != nil {
		out.Manifest.Mark = fromMark(m.GetMark())
		for _, r := range m.GetRank() {
			out.Manifest.Ranks = append(out.Manifest.Ranks, ckptagent.Copy{Mark: out.Manifest.Mark, Length: r.GetLength(), Checksum: r.GetChecksum()})
		}
		for _, o := range m.GetRecorded() {
			out.Manifest.Recorded = append(out.Manifest.Recorded, fromMark(o))
		}
	}
	return out
}
