package elastic

import (
	"strings"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// Directive returns the present directive for the agent of a slot's pod: the first rule that applies decides.
func (s *State) Directive(slot Slot, pod string) protocol.Directive {
	d := protocol.Directive{Generation: s.stored, Order: protocol.OrderWait, Launch: 1}
	d.CommonStep, d.ReclaimBelow = s.generation.Levels()
	launched := s.members.Launched() && !s.replacements.Stops(slot, pod)
	d.WholeCommand = s.generation.Number > 0 && s.members.WholeCommand() && !launched
	fenced, holds, idle := s.replacements.Fenced(pod) && !s.Final(), s.members.Holds(slot, pod), s.nothingToAwait(slot)
	if holds && !fenced {
		d.Launch = s.members.Launch()
		if s.Record.Phase == Finished && s.carriedOut() {
			d.Launch++ // the gang's own is known to be over and returns 0 as well
		}
	}
	switch {
	case fenced && s.replacements.Released(pod):
		exit(&d, exitLeft, "another pod replaces this one")
	case holds && s.carriedOut() && !(s.Record.Phase == Finished && s.members.At(slot).Passes()):
		exit(&d, s.Record.Verdict.ExitCode, string(s.Record.Verdict.Reason))
	case holds && !fenced && s.maySuspend(slot, pod):
		exit(&d, exitLeft, s.Record.Progress.Waits)
	case idle != "" && s.replacements.Stops(slot, pod):
		d = protocol.Directive{Generation: d.Generation, Launch: d.Launch}
		exit(&d, exitLeft, idle)
		if v := s.Record.Verdict; v != nil {
			d.ExitCode = v.ExitCode
		}
	case fenced:
		d.Order, d.Reason = protocol.OrderHalt, "another pod replaces this one"
	case !holds:
		d.Order, d.Reason = protocol.OrderHalt, "a newer pod holds this slot"
		s.nameRestored(&d, slot)
	default:
		s.directPhase(&d, slot, pod)
	}
	d.Launched = launched && d.Order == protocol.OrderHalt && !members.HasLauncher(s.members.At(slot).Report(), s.generation.Number)
	return d
}

// exitLeft is the exit code of the launcher in a terminating pod: that of a process ended by SIGTERM.
const exitLeft = 143

func exit(d *protocol.Directive, code int, reason string) {
	d.Order, d.ExitCode, d.Reason = protocol.OrderExit, code, reason
}

// nothingToAwait returns why terminating pods need not wait; "": they must.
func (s *State) nothingToAwait(slot Slot) string {
	switch {
	case s.over:
		return "the Job is over"
	case !s.ledger.Copies() && s.replacements.Suspended(slot):
		return "the Job is suspended"
	}
	return ""
}

// directPhase sets what a pod of the gang must do in this phase.
func (s *State) directPhase(d *protocol.Directive, slot Slot, pod string) {
	switch s.Record.Phase {
	case Forming:
		s.directHalt(d, slot)
		d.Reason, d.Trial = s.Record.Progress.Waits, s.wantedTrial(slot, pod)
	case Running:
		s.directRunning(d, slot, pod)
	case Halting:
		s.directHalt(d, slot)
		d.HaltWithin = s.run.halting.watch.Within()
		if d.Reason = s.Record.Progress.Waits; d.Reason == "" && s.run.halting.suspect.Cause != nil {
			d.Reason, _, _ = strings.Cut(s.run.halting.suspect.Message, "\n")
		}
	case GivenUp:
		s.directHalt(d, slot)
	case Finished:
	}
	if m := s.members.At(slot); m.Known() && s.stored >= s.generation.Number && !s.Final() {
		s.directStorage(d, slot)
	}
}

// directHalt orders the end of the newest generation.
func (s *State) directHalt(d *protocol.Directive, slot Slot) {
	if d.Generation > 0 {
		d.Order = protocol.OrderHalt
		s.nameRestored(d, slot)
	}
}

// nameRestored adds to an order to halt the step that the newest generation restored. A pod that never ran it holds steps of an older
// history: those above that step, or of another branch, are useless. If that step is unknown, the order does not name it, and the pod keeps
// all steps. A pod that does not hold its slot gets the step too: HALTED of a generation means that these steps are discarded, and the pod
// may get the slot later, for example if its predecessor reported first to this coordinator. A pod whose slot takes no part discards all
// steps.
func (s *State) nameRestored(d *protocol.Directive, slot Slot) {
	if s.stored == s.generation.Number {
		if d.Run = s.generation.Restored(); !s.members.Takes(slot) {
			d.Run.RestoreStep, d.Run.RestoreBranch = 0, 0
		}
	}
}

func (s *State) directRunning(d *protocol.Directive, slot Slot, pod string) {
	if s.stored < s.generation.Number { // no order of it was sent
		if s.stored > 0 {
			d.Order = protocol.OrderHalt
		}
		return
	}
	if run, takesPart := s.generation.Run(slot, pod); takesPart {
		d.Order, d.Run, d.Look, d.Keep = protocol.OrderRun, run, s.wantedLook(), s.run.still.keeping.number
	} else if !s.members.Takes(slot) {
		s.directHalt(d, slot)
		d.Reason = "the gang trains without this pod, which can take part in the next generation"
	}
}

// directStorage adds the barrier step, the durable step, and the steps to copy to storage or fetch from it.
func (s *State) directStorage(d *protocol.Directive, slot Slot) {
	durable := s.ledger.DurableStored()
	d.DurableStep, d.DurableBranch = durable.Step, durable.Branch
	copying, manifest := s.ledger.Copying()
	if slot == s.members.First() {
		d.Manifest = manifest
	}
	pending := s.replacements.For(slot) != nil
	switch {
	case s.Record.Phase != Running:
		if pending {
			d.Copy = s.drain.Halted()
		}
		s.directFetch(d, slot)
	case s.drain.Begun():
		if d.BarrierStep, copying = s.drain.Barrier(); pending {
			d.Copy = copying
			d.CopyNext = s.drain.CopyNext()
		}
	case s.run.growth.begun():
		d.BarrierStep = s.run.growth.barrier.Step()
	default:
		if d.Copy = copying; s.ledger.Awaits() {
			d.CopyNext = 1
		}
	}
}

// directFetch orders an agent to fetch from storage what its ranks lack before the next generation starts: only steps in the stored record.
// Another coordinator would otherwise order an older step, and the agent would give up the fetched one.
func (s *State) directFetch(d *protocol.Directive, slot Slot) {
	if s.run.forming == nil || !s.ledger.StepsStored() || !s.members.At(slot).Report().Storage {
		return
	}
	mark := s.run.forming.fetching.Fetch[int(slot)]
	if mark == (protocol.Mark{}) {
		return
	}
	d.Fetch = mark // a pod that never ran does not know its ranks
	d.Run.BaseRank, d.Run.WorldSize = s.members.Base(slot), s.members.World()
}
