package ckptagent

import (
	"reflect"
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Report returns the state's report. Ranks stays 0 until the first inventory is complete, so that the coordinator never decides about a pod
// whose sealed steps it does not know. It also stays 0 while no rank runs and storage has not answered, so that the coordinator does not
// restore an older step than storage has.
//
// The stream fills in the protocol's version, the pod's address and the report's number.
func (s State) Report() protocol.Report {
	r := protocol.Report{
		Incarnation:     s.Incarnation,
		Containers:      s.Containers,
		Port:            s.Port,
		Generation:      s.Generation,
		State:           s.Phase,
		StateBytes:      s.StateBytes,
		Notes:           s.Notes,
		Refused:         s.Refused,
		Terminating:     s.Terminating,
		Timeline:        s.Timeline,
		Storage:         s.Storage,
		Grace:           s.Grace,
		Manifested:      s.Manifested,
		FetchFailed:     s.FetchFailed,
		CopyTook:        s.CopyTook,
		BarrierStep:     s.BarrierStep,
		WholeCommand:    s.Whole,
		LeftForLauncher: s.LeftForLauncher,
		Unprotected:     s.Unprotected,
		Launch:          max(1, s.Launch),
		Waited:          s.Waited,
		WaitedFor:       s.WaitedFor,
		Look:            s.Look,
		Kept:            s.Kept,
		Trials:          s.Answers,
		Shrinks:         true,
	}
	if r.MaxRestarts = s.MaxRestarts; s.Launcher == "" {
		r.MaxRestarts = s.Command.MaxRestarts
	}
	r.Returned = r.Launch - 1
	if s.Returned != nil && s.Returned.Code == 0 &&
		(!s.Terminating || s.Phase == protocol.StateFinished) { // a command may handle SIGTERM by exiting with 0
		r.Returned = r.Launch
	}
	if s.Known && !(s.Unsure && s.Clean) {
		r.Ranks = s.Ranks
		for local, k := range s.Rank {
			r.Rank = append(r.Rank, protocol.Rank{
				Local: local, Sealed: k.Sealed, Step: k.Step, Exit: k.Exit, StandbyReady: k.StandbyReady, PID: k.PID, FromStandby: k.FromStandby,
				Copied: k.Copied, OptimizerSteps: k.OptimizerSteps, ResumedAt: k.ResumedAt, ResumeKnown: k.ResumeKnown,
				Saves: k.Saves, Span: k.Span, Grouped: k.Grouped,
			})
		}
	}
	free := fit(&r, s.Modules)
	if s.Want.WantModules {
		r.Modules = s.Modules[:r.ModulesKnown]
		for _, name := range r.Modules {
			free -= len(name) + moduleBytes
		}
	}
	if r.Ranks > 0 {
		r.Looks = fitLooks(s.Looks, free)
	}
	return r
}

// Urgent reports whether the change from the old report to this one must be sent at once: every change but progress. A new field is urgent
// unless withoutProgress drops it.
func Urgent(r, old protocol.Report) bool {
	return !reflect.DeepEqual(withoutProgress(r), withoutProgress(old))
}

// withoutProgress drops what changes in normal operation and may wait for the next regular report. Of notes and of modules only their
// number counts.
func withoutProgress(r protocol.Report) protocol.Report {
	r.Grace, r.CopyTook = 0, 0
	r.Notes, r.Modules = make([]string, len(r.Notes)), make([]string, len(r.Modules))
	r.Rank = slices.Clone(r.Rank)
	for i := range r.Rank {
		k := &r.Rank[i]
		k.Step, k.Sealed, k.OptimizerSteps, k.ResumedAt, k.ResumeKnown, k.Saves = 0, nil, 0, 0, false, nil
	}
	return r
}
