package coord

import (
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent"
)

// protocol is the version of the conversation that is spoken here.
const protocol = 1

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
		out.Rank = append(out.Rank, p)
	}
	return out
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
	return out
}
