package elastic

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
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
//	| the coordinator | stored revision storedRevision durableRevision branchRevision pinnedRevision verdictRevision sealedAt beganAt awaitsAgent lookedUpAt |
//	|                 | ended ending persistedCount persistedCountAt settled; of the gang, as far as this coordinator has learned it:  |
//	|                 | storage retention over excused mixedSince pace reportInterval gap                                     |
//	| a pod           | members, replacements                                                                       |
//	| the generation  | run, replaced whole by becomeRunning                                                       |
//	| the phase       | run.halting, run.forming, replaced whole by becomeHalting and becomeForming                |
//	| the event       | now effects                                                                                |
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
	// pace is the time that a step takes, reportInterval the time from one step that is told to the next, which may be many steps later, both
	// smoothed; gap is the fewest steps from one that is told to the next.
	pace, reportInterval time.Duration
	gap                  int64

	members      *members.Members
	replacements *replacements.Replacements
	run          run

	now     time.Time
	effects []Effect
}

// New returns the state of a gang of so many pods that copies steps to storage so often (0: never), with the
// record that the store has of it.
func New(pods int, storage time.Duration, r Record) *State {
	s := &State{
		Record:  r,
		members: members.New(pods, r.Progress.Seen, r.Left, r.Generation > 0 && !r.Progress.WholeCommand),
		run:     run{exits: map[exitOf]cause.Exit{}, exitBytes: map[Slot]int64{}},
		stored:  r.Generation,
		storage: storage,
	}
	var replaced []Replacement
	for i := range r.Recoveries {
		replaced = append(replaced, r.Recoveries[i].Replaced...)
	}
	s.replacements = replacements.New(s.members, r.PendingReplacements, r.Suspended, r.Replacements, replaced)
	s.Record.Recoveries = slices.Clone(r.Recoveries)
	for i := range s.Record.Recoveries {
		s.Record.Recoveries[i].Replaced = slices.Clone(r.Recoveries[i].Replaced)
	}
	s.Record.Progress.Waits = ""
	switch {
	case r.Verdict != nil:
		s.Record.Phase = GivenUp
		if r.Verdict.Reason == ReasonFinished {
			s.Record.Phase = Finished
		}
	case r.Generation == 0 || s.judged() || !r.begun():
		s.Record.Phase, s.run.forming = Forming, &forming{containers: make([]uint64, pods)}
	default:
		s.Record.Phase = Running // until an agent says otherwise
	}
	p := &s.Record.Progress
	s.run.counted = members.Counted{Lowest: p.OptimizerSteps, Most: p.OptimizerSteps, ResumedAt: p.ResumedAt, Known: p.ResumeKnown}
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
func (s *State) Members() int { return s.members.Len() }

// Final says whether a verdict was reached.
func (s *State) Final() bool { return s.Record.Verdict != nil }

// Over says whether the Job has ended or is being deleted.
func (s *State) Over() bool { return s.over }
