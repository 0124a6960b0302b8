package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// State is one gang as the coordinator knows it. Step alone changes it.
//
//	                  all ready                 failure
//	Forming ────────────────────────► Running ─────────────► Halting
//	   ▲     persist, then hand out      │                      │ all halted
//	   └──────────── budget left ────────┼──────────────────────┤
//	                                     ▼ all finished         ▼ budget spent, or refused
//	                                 Finished                GivenUp
//
// What is known lives as long as what it is about:
//
//	| lives for       | fields                                                                                     |
//	|-----------------|--------------------------------------------------------------------------------------------|
//	| the gang        | Record (outlives every coordinator)                                                        |
//	| the coordinator | stored revision storedRevision durableRevision branchRevision pinnedRevision verdictRevision sealedAt stages supersededPods beganAt awaitsAgent lookedUpAt |
//	|                 | ended ending persistedCount persistedCountAt settled; of the gang, as far as this coordinator has learned it:  |
//	|                 | storage retention over excused mixedSince launched pace reportInterval gap                                     |
//	| a pod           | slots[i]; ranIn and restartedIn name the generation that they are of                       |
//	| the generation  | run, replaced whole by becomeRunning                                                       |
//	| the phase       | run.halting, run.forming, replaced whole by becomeHalting and becomeForming                |
//	| the event       | now effects ranked                                                                         |
type State struct {
	// Record is what is decided; its Generation never falls.
	Record Record

	// stored is the highest generation that the store has.
	stored int64
	// revision counts effects Persist; storedRevision is the newest that the store has, durableRevision the first that has Record.Durable,
	// branchRevision the first that has the newest branch, pinnedRevision the first that has the pins that people ask for, verdictRevision the
	// first that has the verdict.
	revision, storedRevision, durableRevision, branchRevision, pinnedRevision, verdictRevision int64
	// sealedAt is when all ranks held Record.Durable sealed, until its record is stored; zero: that is not known, or told.
	sealedAt time.Time
	// stages are those of replacements from replaceCommitted on, by pod; supersededPods are those that a newer pod took the slot over from.
	stages         map[string]replaceStage
	supersededPods map[string]bool
	// beganAt is when this coordinator saw the gang first. awaitsAgent: a terminating pod may still attach to it.
	beganAt     time.Time
	awaitsAgent bool
	// lookedUpAt is when it was last asked who holds silent slots.
	lookedUpAt time.Time
	// ended: the job of a given-up gang makes no pods any more; ending: it was asked to.
	ended, ending bool
	// persistedCount is how many optimizer steps people were last to see, persistedCountAt when.
	persistedCount   int64
	persistedCountAt time.Time
	// settled is the newest generation whose recovery is accounted for in Progress.Lost and was told.
	settled int64

	// storage is how often steps are copied to storage; 0: there is none.
	storage time.Duration
	// retention is what the job asks to be kept there.
	retention Retention
	// over: the Job has ended or is being deleted. Nothing is repaired or replaced from then on.
	over bool
	// excused counts generations in a row that a port conflict or a launcher's start ended.
	excused int
	// mixedSince is when some pods were first seen to run their whole command while others have launchers; zero: they do not.
	mixedSince time.Time
	// launched: a pod starts its ranks with a launcher, or all did in the newest generation, so that they may again.
	launched bool
	// pace is the time that a step takes, reportInterval the time from one step that is told to the next, which may be many steps later, both
	// smoothed; gap is the fewest steps from one that is told to the next.
	pace, reportInterval time.Duration
	gap                  int64

	// slots has one entry per member; the agent's truth as last reported.
	slots []member
	run   run

	now     time.Time
	effects []Effect
	// ranked is worked out once per event.
	ranked *ranked
}

// member is what is known of a slot.
type member struct {
	known    bool
	attached bool
	pod      Pod
	report   protocol.Report
	// ranIn is the newest generation that this pod has reported that it ran, restartedIn the one in which its agent came back in
	// a new container.
	ranIn, restartedIn int64
	// terminatingAt is when it was first heard that the pod is being shut down.
	terminatingAt time.Time
	// failed are the newest fetches that this pod could not do (noteFailed).
	failed []protocol.Mark
	saves  savesSeen
}

// New returns the state of a gang of members pods that copies steps to storage so often (0: never), with the
// record that the store has of it.
func New(members int, storage time.Duration, r Record) *State {
	s := &State{Record: r, slots: make([]member, members), run: run{exits: map[exitOf]cause.Exit{}, exitBytes: map[Slot]int64{}}, stored: r.Generation, storage: storage,
		stages: r.replacements(), supersededPods: map[string]bool{}, launched: r.Generation > 0 && !r.Progress.WholeCommand}
	s.Record.Recoveries = slices.Clone(r.Recoveries)
	for i := range s.Record.Recoveries {
		s.Record.Recoveries[i].Replaced = slices.Clone(r.Recoveries[i].Replaced)
	}
	s.Record.Progress.Attached, s.Record.Progress.Waits = nil, ""
	switch {
	case r.Verdict != nil:
		s.Record.Phase = GivenUp
		if r.Verdict.Reason == ReasonFinished {
			s.Record.Phase = Finished
		}
	case r.Generation == 0 || s.judged() || !r.begun():
		s.Record.Phase, s.run.forming = Forming, &forming{containers: make([]uint64, members)}
	default:
		s.Record.Phase = Running // until an agent says otherwise
	}
	p := &s.Record.Progress
	s.run.counted = counted{lowest: p.OptimizerSteps, most: p.OptimizerSteps, resumedAt: p.ResumedAt, known: p.ResumeKnown}
	s.persistedCount = p.OptimizerSteps
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

// openRecovery is the account of the repair that is under way; nil: none is.
func (s *State) openRecovery() *Recovery {
	if rec := s.lastRecovery(); rec != nil && rec.Generation > s.Record.Generation {
		return rec
	}
	return nil
}

// Members is the number of pods.
func (s *State) Members() int { return len(s.slots) }

// Final says whether a verdict was reached.
func (s *State) Final() bool { return s.Record.Verdict != nil }

// Over says whether the Job has ended or is being deleted.
func (s *State) Over() bool { return s.over }
