package elastic

// Directive is what the agent of a slot's pod must do now. A pod whose place was taken by a newer one
// must end what it runs. Where the Job is over, or rests and nothing of it can be stored, pods that were told to go have
// nothing to wait for.
func (s *State) Directive(slot Slot, pod string) Directive {
	d := s.direct(slot, pod)
	d.WholeCommand = s.Record.Generation > 0 && s.Record.Progress.WholeCommand
	if d.WholeCommand && s.launched && !s.goes(slot, pod) {
		d.WholeCommand, d.Launched = false, true
	}
	why := ""
	switch {
	case s.over:
		why = "the Job is over"
	case s.storage <= 0 && s.rests(slot):
		why = "the Job is suspended"
	}
	if why == "" || d.Order == OrderExit || !s.goes(slot, pod) {
		return d
	}
	d = Directive{Generation: d.Generation, Order: OrderExit, ExitCode: exitLeft, Reason: why}
	if v := s.Record.Verdict; v != nil {
		d.ExitCode = v.ExitCode
	}
	return d
}

// goes says whether a pod was told to go, or holds its slot no more.
func (s *State) goes(slot Slot, pod string) bool {
	m := &s.slots[slot]
	return s.Fenced(pod) || s.superseded(pod) || m.known && (m.pod.UID != pod || m.report.Leaving)
}

func (s *State) direct(slot Slot, pod string) Directive {
	r := &s.Record
	d := Directive{Generation: s.stored, Order: OrderWait, Common: s.run.common, Frontier: s.run.frontier}
	m := &s.slots[slot]
	if s.stage(pod) == replaceReleased && !s.Final() {
		d.Order, d.ExitCode, d.Reason = OrderExit, exitLeft, "the pod is replaced by another one"
		return d
	}
	if s.Fenced(pod) && !s.Final() {
		d.Order, d.Reason = OrderHalt, "the pod is replaced by another one"
		return d
	}
	if m.known && m.pod.UID != pod || s.superseded(pod) {
		d.Order, d.Reason = OrderHalt, "a newer pod has taken this place in the gang"
		return d
	}
	switch r.Phase {
	case Forming:
		if s.mayRest(slot, pod) {
			d.Order, d.ExitCode, d.Reason = OrderExit, exitLeft, r.Progress.Waits
			return d
		}
		s.directHalt(&d)
		d.Reason = r.Progress.Waits
	case Running:
		s.directRunning(&d, slot, pod)
	case Halting:
		s.directHalt(&d)
		if d.Reason = r.Progress.Waits; d.Reason == "" && s.run.halting.suspect != nil {
			d.Reason = s.run.halting.suspect.Message
		}
	case Finished, GivenUp:
		s.directFinal(&d)
	}
	if m.known && m.report.Protocol >= 2 {
		s.directDrain(&d, slot)
	}
	return d
}

// exitLeft is what the launcher of a pod returns that was told to go: that of a process ended by SIGTERM.
const exitLeft = 143

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

func (s *State) directFinal(d *Directive) {
	v := s.Record.Verdict
	if !s.storedVerdict || (s.Record.Phase == GivenUp && !s.ended) {
		if s.Record.Phase == GivenUp {
			s.directHalt(d)
		}
		return
	}
	d.Order, d.ExitCode, d.Reason = OrderExit, v.ExitCode, string(v.Reason)
}

// directDrain adds what agents of protocol 2 are told beside the order.
func (s *State) directDrain(d *Directive, slot Slot) {
	if s.stored < s.Record.Generation || s.Final() {
		return
	}
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
		d.Hold = s.run.drain.hold
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
	run := Launch{}
	if d.Run != nil {
		run = *d.Run
	}
	run.BaseRank, run.WorldSize = s.baseRank(slot), s.world() // a pod that never ran does not know whose files are its own
	d.Run = &run
}
