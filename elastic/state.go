package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/drain"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/quiet"
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
// Each field lives as long as its subject:
//
//	| lives for       | fields                                                                                     |
//	|-----------------|--------------------------------------------------------------------------------------------|
//	| the gang        | Record (outlives every coordinator)                                                        |
//	| the coordinator | stored revision storedRevision verdictRevision lookedUpAt ended ending over quiet supervision walks |
//	| as each says    | members replacements account ledger generation drain sizes                                   |
//	| the generation  | run, replaced whole by becomeRunning                                                       |
//	| the phase       | run.halting, run.forming, replaced whole by becomeHalting and becomeForming                |
//	| the event       | now effects                                                                                |
type State struct {
	// Record has only the phase, the verdict, the node check, and Waits and Standstill of Progress; all else is kept by the owners below
	// (Snapshot).
	Record Record

	// stored is the highest generation that the store has.
	stored int64
	// revision counts effects Persist; storedRevision is the newest that the store has, verdictRevision the first that has the verdict.
	revision, storedRevision, verdictRevision int64
	// lookedUpAt is when the holders of silent slots were last queried.
	lookedUpAt time.Time
	// ended: the job of a given-up gang creates no more pods; ending: that was requested.
	ended, ending bool

	// over: the Job has ended or is being deleted. From then on nothing is repaired or replaced.
	over bool

	members      *members.Members
	replacements *replacements.Replacements
	account      *account.Account
	ledger       *ledger.Ledger
	generation   *generation.Generation
	drain        *drain.Drain
	run          run
	// quiet watches for silence, supervision is what is done about it.
	quiet       quiet.Watch
	supervision Supervision
	// sizes is what a gang with a minimum knows of its pods.
	sizes sizes
	walks walks

	now     time.Time
	effects []Effect
}

// New returns the state of a gang of that many pods, from its stored record. storage is the interval at which steps are copied to storage
// (0: never).
func New(pods int, storage time.Duration, r Record) *State {
	s := &State{
		Record: Record{Verdict: r.Verdict, Check: r.Check, CheckWish: r.CheckWish},
		members: members.New(
			pods,
			members.Recorded{Seen: r.Progress.Seen, Launch: r.Launch.Number, Left: r.Left, Out: r.Out},
			r.Generation > 0 && !r.Progress.WholeCommand,
		),
		stored: r.Generation,
		quiet:  quiet.New(r.Progress.LongestSilence),
		walks:  newWalks(pods),
	}
	s.replacements = replacements.New(s.members, r.PendingReplacements, r.Suspended, r.Replacements, account.Replaced(r.Recoveries))
	s.ledger = ledger.New(storage, ledger.Recorded{
		Durable:  r.Durable,
		Older:    r.Older,
		Kept:     r.Kept,
		Copies:   r.Copies,
		Pinned:   r.Pinned,
		PinWish:  r.PinWish,
		Line:     r.Branches,
		Launches: r.Launch.Kept,
	})
	s.account = account.New(account.Recorded{
		Budget:     r.Budget,
		Figures:    r.Progress.Figures,
		BestStep:   r.BestStep,
		StartedAt:  r.StartedAt,
		Recoveries: r.Recoveries,
		Before:     r.Launch.Restarts,
		Moved:      r.Moved,
	})
	g := generation.Recorded{
		Number: r.Generation, RestoreStep: r.RestoreStep, Branch: r.Branch, RestoreBranch: r.RestoreBranch, After: r.Launch.After,
		Worlds: r.Worlds,
	}
	s.generation = generation.New(g, s.members, s.replacements, s.ledger, s.account)
	s.Record.Progress.Fewer = r.Progress.Fewer
	s.sizes = recordedSizes(r.Sizes)
	s.drain = drain.New(s.members, s.replacements, s.ledger, s.account, s.generation)
	switch {
	case r.Verdict != nil:
		s.Record.Phase = GivenUp
		if r.Verdict.Reason == ReasonFinished {
			s.Record.Phase = Finished
		}
	case r.Generation == 0 || s.account.Repairs(r.Generation) || !s.generation.Begun():
		s.Record.Phase, s.run.forming = Forming, &forming{containers: make([]uint64, pods)}
	default:
		s.Record.Phase = Running // until an agent reports otherwise
		s.resumeStandstill(r.Progress.Standstill)
	}
	return s
}

// Members returns the number of pods.
func (s *State) Members() int { return s.members.Len() }

// Final reports whether a verdict was reached.
func (s *State) Final() bool { return s.Record.Verdict != nil }

// Over reports whether the Job has ended or is being deleted.
func (s *State) Over() bool { return s.over }
