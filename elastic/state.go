package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// State is one gang as the coordinator knows it. Step alone changes it.
//
//	                  all ready                 failure
//	Forming ────────────────────────► Running ─────────────► Halting
//	   ▲     persist, then hand out      │                      │ all halted
//	   └──────────── budget left ────────┼──────────────────────┤
//	                                     ▼ all finished         ▼ budget spent, or refused
//	                                 Finished                GivenUp
type State struct {
	// Record is what is decided; its Generation never falls.
	Record Record
	// stored is the highest generation that the store has, storedVerdict whether it has the verdict.
	stored        int64
	storedVerdict bool
	// revision counts Persists; storedRevision is the newest that the store has.
	revision, storedRevision int64
	// asked are pods that Replace was emitted for in this life; gone are those that were released in it,
	// past those that a newer pod took the slot over from.
	asked, gone, past map[string]bool
	// storage is how often steps are copied to storage; 0: there is none.
	storage time.Duration
	// drain is under way while the newest generation runs with doomed pods; salvage is what doomed pods are
	// to copy while everything is halted.
	drain   *drain
	salvage Mark
	// copying is the step on its way to storage, from all ranks; fetching what comes from there, before a
	// generation begins, and fetched whether something did.
	copying  *copying
	fetching plan
	fetched  bool
	// unread is one more than the step that people were told cannot be read; 0: they were told of none.
	unread int64
	// haltedAt is when all was halted, readyAt when all pods were there for the next generation.
	haltedAt, readyAt time.Time
	// ended: the job of a given-up gang makes no pods any more; ending: it was asked to.
	ended, ending bool
	// over: the Job has ended or is being deleted. Nothing is repaired or replaced from then on.
	over bool

	// ranked and planned: what follows from reports alone is worked out once per change of them.
	ranked  *ranked
	planned bool
	now     time.Time
	// beganAt is when this coordinator saw the gang first.
	beganAt time.Time
	// awaits: a doomed pod has its time yet to come to a coordinator that has only begun.
	awaits bool
	// quiet counts slots that must halt and are not heard, and those given up for that; deaf: they are several, and more
	// than the others. hearsSince is when that was last over, soughtAt when it was last asked who holds the silent ones.
	quiet                int
	deaf                 bool
	hearsSince, soughtAt time.Time
	// mixedSince is when some pods were first seen to run their whole command while others have launchers; zero: they do not.
	mixedSince time.Time
	// launched: a pod starts its ranks with a launcher. deaths is how often the container of one pod ended whole at most since the
	// gang began to form.
	launched bool
	deaths   uint64

	// slots has one entry per member; the agent's truth as last reported.
	slots []member
	// layout is who takes part in Record.Generation; nil where an earlier coordinator handed it out.
	layout *layout
	// common and frontier as in Directive; within a generation they only rise.
	common, frontier int64
	// exits of the newest generation, by rank; they outlive their pod.
	exits map[int]cause.Exit
	// suspect is what is known of a failure that no exit tells of.
	suspect *cause.Cause
	// detected is when the present failure was seen, by our clock.
	detected time.Time
	// runningSince is when all ranks of the newest generation were first seen to run.
	runningSince time.Time
	// conflicts counts port conflicts in a row.
	conflicts int
	// pace is the time that a step takes, beat the time from one step that is told to the next, which may be many steps later, both
	// smoothed; paceStep and paceAt are where they were measured last.
	pace     time.Duration
	beat     time.Duration
	paceStep int64
	paceAt   time.Time
	// counted are the optimizer steps of the newest generation, toldStep the newest step that all its ranks told, gap the fewest steps
	// from one that is told to the next.
	counted counted
	// seen is how many optimizer steps people were last to see, seenAt when.
	seen          int64
	seenAt        time.Time
	toldStep, gap int64
	// settled is the newest generation whose recovery is accounted for in Progress.Lost and was told.
	settled int64

	effects []Effect
}

// member is what is known of a slot.
type member struct {
	known    bool
	attached bool
	pod      Pod
	report   Report
	// ran: this pod has reported that it ran the newest generation.
	ran bool
	// restarted: its agent ran the newest generation and came back in a new container.
	restarted bool
	// launched: its whole command, one rank of the newest generation, has started a launcher, whose ranks take its place.
	launched bool
	// containers is how many it had had when the gang last began to form.
	containers uint64
	// leavingAt is when it was first heard that the pod is being shut down.
	leavingAt time.Time
	// failed are the fetches that this pod could not do.
	failed  []Mark
	silence silence
}

// layout is the membership of one generation.
type layout struct {
	pods         []string // by slot
	incarnations []uint64
	base         []int
	world        int
	addr         string
	port         int
}

// New returns the state of a gang of members pods that copies steps to storage so often (0: never), with the
// record that the store has of it.
func New(members int, storage time.Duration, r Record) *State {
	s := &State{Record: r, slots: make([]member, members), exits: map[int]cause.Exit{}, stored: r.Generation, storage: storage,
		asked: map[string]bool{}, gone: map[string]bool{}, past: map[string]bool{}}
	s.Record.Recoveries = slices.Clone(r.Recoveries)
	for i := range s.Record.Recoveries {
		s.Record.Recoveries[i].Replaced = slices.Clone(r.Recoveries[i].Replaced)
	}
	s.Record.Progress.Attached, s.Record.Progress.Waits = nil, ""
	switch {
	case r.Verdict != nil:
		s.storedVerdict = true
		s.Record.Phase = GivenUp
		if r.Verdict.Reason == ReasonFinished {
			s.Record.Phase = Finished
		}
	case r.Generation == 0 || s.judged():
		s.Record.Phase = Forming
	default:
		s.Record.Phase = Running // until an agent says otherwise
	}
	p := &s.Record.Progress
	s.counted = counted{lowest: p.OptimizerSteps, most: p.OptimizerSteps, resumedAt: p.ResumedAt, known: p.ResumeKnown}
	s.seen = p.OptimizerSteps
	if last := s.lastRecovery(); last != nil && (last.FirstStep >= 0 || last.Start >= 0 && !s.countsSteps()) {
		s.settled = last.Generation
	}
	return s
}

// judged says whether the failure that ended the newest generation is already accounted for.
func (s *State) judged() bool {
	last := s.lastRecovery()
	return last != nil && last.Generation > s.Record.Generation
}

func (s *State) lastRecovery() *Recovery {
	if n := len(s.Record.Recoveries); n > 0 {
		return &s.Record.Recoveries[n-1]
	}
	return nil
}

// Members is the number of pods.
func (s *State) Members() int { return len(s.slots) }

// Final says whether a verdict was reached.
func (s *State) Final() bool { return s.Record.Verdict != nil }

// Over says whether the Job has ended or is being deleted.
func (s *State) Over() bool { return s.over }

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
	return s.Fenced(pod) || s.isPast(pod) || m.known && (m.pod.UID != pod || m.report.Leaving)
}

func (s *State) direct(slot Slot, pod string) Directive {
	r := &s.Record
	d := Directive{Generation: s.stored, Order: OrderWait, Common: s.common, Frontier: s.frontier}
	m := &s.slots[slot]
	if s.released(pod) && !s.Final() {
		d.Order, d.ExitCode, d.Reason = OrderExit, exitLeft, "the pod is replaced by another one"
		return d
	}
	if s.Fenced(pod) && !s.Final() {
		d.Order, d.Reason = OrderHalt, "the pod is replaced by another one"
		return d
	}
	if m.known && m.pod.UID != pod || s.isPast(pod) {
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
		if d.Reason = r.Progress.Waits; d.Reason == "" && s.suspect != nil {
			d.Reason = s.suspect.Message
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
	r, l := &s.Record, s.layout
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
