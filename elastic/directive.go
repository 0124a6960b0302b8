package elastic

// Directive is what the agent of a slot's pod must do now: what the first of these rules says that holds.
func (s *State) Directive(slot Slot, pod string) Directive {
	d := Directive{Generation: s.stored, Order: OrderWait, Common: s.run.common, Frontier: s.run.frontier}
	launched := s.launched && !s.goes(slot, pod)
	d.WholeCommand = s.Record.Generation > 0 && s.Record.Progress.WholeCommand && !launched
	fenced, holds, idle := s.Fenced(pod) && !s.Final(), s.holds(slot, pod), s.nothingLeft(slot)
	switch {
	case fenced && s.stage(pod) == replaceReleased:
		d.exit(exitLeft, "the pod is replaced by another one")
	case holds && s.carriedOut():
		d.exit(s.Record.Verdict.ExitCode, string(s.Record.Verdict.Reason))
	case holds && !fenced && s.mayRest(slot, pod):
		d.exit(exitLeft, s.Record.Progress.Waits)
	case idle != "" && s.goes(slot, pod):
		d = Directive{Generation: d.Generation}
		d.exit(exitLeft, idle)
		if v := s.Record.Verdict; v != nil {
			d.ExitCode = v.ExitCode
		}
	case fenced:
		d.Order, d.Reason = OrderHalt, "the pod is replaced by another one"
	case !holds:
		d.Order, d.Reason = OrderHalt, "a newer pod has taken this place in the gang"
	default:
		s.directPhase(&d, slot, pod)
	}
	d.Launched = launched && d.Order == OrderHalt && !s.hasLauncher(&s.slots[slot].report)
	return d
}

// exitLeft is what the launcher of a pod returns that was told to go: that of a process ended by SIGTERM.
const exitLeft = 143

func (d *Directive) exit(code int, reason string) {
	d.Order, d.ExitCode, d.Reason = OrderExit, code, reason
}

// holds says whether no other pod is known to have taken a pod's slot.
func (s *State) holds(slot Slot, pod string) bool {
	m := &s.slots[slot]
	return !s.superseded(pod) && (!m.known || m.pod.UID == pod)
}

// goes says whether a pod was told to go, or holds its slot no more.
func (s *State) goes(slot Slot, pod string) bool {
	m := &s.slots[slot]
	return s.Fenced(pod) || !s.holds(slot, pod) || m.known && m.report.Leaving
}

// nothingLeft is why pods that were told to go have nothing to wait for; "": they have.
func (s *State) nothingLeft(slot Slot) string {
	switch {
	case s.over:
		return "the Job is over"
	case s.storage <= 0 && s.rests(slot):
		return "the Job is suspended"
	}
	return ""
}

// directPhase is what a pod of the gang must do in this phase.
func (s *State) directPhase(d *Directive, slot Slot, pod string) {
	switch s.Record.Phase {
	case Forming:
		s.directHalt(d)
		d.Reason = s.Record.Progress.Waits
	case Running:
		s.directRunning(d, slot, pod)
	case Halting:
		s.directHalt(d)
		if d.Reason = s.Record.Progress.Waits; d.Reason == "" && s.run.halting.suspect != nil {
			d.Reason = s.run.halting.suspect.Message
		}
	case GivenUp:
		s.directHalt(d)
	case Finished:
	}
	if m := &s.slots[slot]; m.known && m.report.Protocol >= 2 && s.stored >= s.Record.Generation && !s.Final() {
		s.directStorage(d, slot)
	}
}

// directHalt ends the newest generation. A pod that never ran it holds steps of an older past: what lies
// above the point that the generation restored is of no use to it any more. Where that point is not known,
// nothing is said of it, and everything is kept.
func (s *State) directHalt(d *Directive) {
	if d.Generation == 0 {
		return
	}
	d.Order = OrderHalt
	if s.stored == s.Record.Generation && s.Record.RestoreStep != StepUnknown {
		d.Run = &Launch{Number: s.stored, RestoreStep: s.Record.RestoreStep}
	}
}

func (s *State) directRunning(d *Directive, slot Slot, pod string) {
	r, l := &s.Record, s.run.layout
	switch {
	case s.stored < r.Generation: // not handed out before it is stored
		if s.stored > 0 {
			d.Order = OrderHalt
		}
	case l == nil:
		// Handed out by an earlier coordinator. An agent that has it goes on, and takes the levels over.
		if m := &s.slots[slot]; m.known && m.pod.UID == pod && m.report.Generation == r.Generation && ran(m.report.State) {
			d.Order, d.Run = OrderRun, &Launch{Number: r.Generation, RestoreStep: max(0, r.RestoreStep)}
		}
	case l.pods[slot] != pod:
	default:
		d.Order = OrderRun
		d.Run = &Launch{
			Number: r.Generation, WorldSize: l.world, BaseRank: l.base[slot], NodeRank: int(slot), Nodes: len(s.slots),
			MasterAddr: l.addr, MasterPort: l.port, RestoreStep: r.RestoreStep, RestartCount: r.Restarts,
		}
	}
}

// directStorage adds what agents of protocol 2 are told beside the order: where ranks stay, and what goes to storage or
// comes from there.
func (s *State) directStorage(d *Directive, slot Slot) {
	if s.run.copying != nil && slot == 0 {
		d.Manifest = s.run.copying.manifest
	}
	doomed := s.doom(slot) != nil
	switch {
	case s.Record.Phase != Running:
		if doomed {
			d.Copy = s.run.salvage
		}
		s.directFetch(d, slot)
	case s.run.drain != nil:
		d.Hold = s.run.drain.barrier.Hold()
		if doomed {
			d.Copy = s.run.drain.mark
		}
	case s.run.copying != nil:
		d.Copy = s.run.copying.mark
	}
}

// directFetch has an agent bring what its ranks lack from storage, before the next generation begins.
func (s *State) directFetch(d *Directive, slot Slot) {
	if s.run.forming == nil || !s.slots[slot].report.Storage {
		return
	}
	mark := s.run.forming.fetching.fetch[slot]
	if mark == (Mark{}) {
		return
	}
	d.Fetch = mark
	launch := Launch{}
	if d.Run != nil {
		launch = *d.Run
	}
	launch.BaseRank, launch.WorldSize = s.baseRank(slot), s.world() // a pod that never ran does not know whose files are its own
	d.Run = &launch
}
