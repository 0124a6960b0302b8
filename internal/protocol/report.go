package protocol

import (
	"math"
	"slices"
	"time"
)

// Report is the whole state of an agent. An agent sends its report after each change, and every second.
type Report struct {
	// Protocol is the agent's protocol version.
	Protocol int
	// Incarnation rises with each start of the agent in this pod, Sequence with each changed report of one incarnation. Of two reports the
	// one with the higher Incarnation counts, then the one with the higher Sequence. Sequence 0: reports count in the order of their
	// arrival.
	Incarnation uint64
	Sequence    uint64
	// Containers is the number of containers that this pod has had: it rises with each restart of the container. 0: unknown.
	Containers uint64
	// Ranks is the number that the user's launcher requests in this pod; 0 until it has run and the inventory of sealed steps is complete.
	Ranks int
	// Address is this pod's address for other pods, Port a free port for rank 0's store in the next generation; 0: none yet.
	Address string
	Port    int
	// Generation is the highest that this agent has run, or was ordered to run or to halt. It is stored, so that a new incarnation never
	// starts a generation for the second time.
	Generation int64
	State      AgentState
	// Rank has one entry per local rank, in order, once a generation has run.
	Rank []Rank
	// StateBytes is the size of one slot in bytes; 0: state in memory is off.
	StateBytes uint64
	// Notes explain to users what is off or degraded and why, such as state in memory or standbys.
	Notes []string
	// Refused is why the launcher was refused (unknown flag, bad value); the pod will exit.
	Refused string
	// Terminating: the pod is being shut down.
	Terminating bool
	Timeline    Timeline
	// Storage: it is mounted and can be written; steps can be copied to it and fetched from it.
	Storage bool
	// Grace is the pod's time between SIGTERM and SIGKILL; 0: unknown.
	Grace time.Duration
	// Manifested is the newest manifest that this agent wrote by order.
	Manifested Mark
	// FetchFailed is the fetch that failed for good: a file is missing, damaged or of another size.
	FetchFailed Mark
	// CopyTook is how long the newest copy of a step to storage took; for users.
	CopyTook time.Duration
	// BarrierStep is the barrier in the arenas of this pod; 0: none.
	BarrierStep int64
	// WholeCommand: the pod's one rank is its whole command. It started no supported launcher, and a failure restarts all of it.
	WholeCommand bool
	// LeftForLauncher is the newest generation that this pod left, or did not begin, because a launcher starts its ranks or is expected to,
	// so that no whole command is a rank any more. No rank failed. 0: none.
	LeftForLauncher int64
	// Unprotected is, for users, what runs in the container if no rank was started within a minute of the command's start; "": ranks run,
	// or the minute is not over.
	Unprotected string
	// ModulesKnown is the number of modules that standbys of this pod import; 0: unknown yet. Modules are their names, in order, while the
	// directive requests them.
	ModulesKnown int
	Modules      []string
	// Launch is the number of the launcher that is served, or expected, of those that the container's command runs in turn, from 1; 0: the
	// agent supports one launcher per container. A restarted container begins with its first launcher again.
	Launch int
	// Trials has the newest answer of each round of one node check.
	Trials []TrialAnswer
	// Returned is the number of the newest launcher that has returned 0, or 1 once a whole command has succeeded and its container with it;
	// 0: none. The pod is no member of further generations of that launcher.
	Returned int
	// MaxRestarts is the limit of restarts of the launcher or the job; nil: none is set.
	MaxRestarts *int
	// Waited is the number of ranks that handled SIGTERM when the newest generation was ended in this pod, WaitedFor how long they took.
	Waited    int
	WaitedFor time.Duration
	// Look is the newest look that this incarnation answered; 0: none. Looks are its answer, one per local rank of the generation that
	// runs, until the directive wants another look, or none.
	Look  int64
	Looks []Look
	// Kept is the newest Directive.Keep that this incarnation answered; 0: none. Nothing more is taken from ranks for it.
	Kept int64
	// Shrinks: the agent runs generations with fewer pods than its launcher asks for (Run.Slots).
	Shrinks bool
}

// Rank is the report on one rank.
type Rank struct {
	Local int
	// Sealed are the complete and verified steps in this rank's memory, ascending by number.
	Sealed []Point
	// Step is the newest that the script reported (save or step call); 0: none.
	Step int64
	// Exit stays until the next generation starts.
	Exit         *Exit
	StandbyReady bool
	PID          int
	// FromStandby: the process was a warm standby.
	FromStandby bool
	// Copied is the newest step of this rank that this pod copied to storage.
	Copied Copied
	// OptimizerSteps is the number that the process has finished in this generation, counted without the script's help; 0: none, or
	// unknown. Every process starts at 0, whatever its script has restored.
	OptimizerSteps int64
	// ResumedAt is the number of optimizer steps in the restored state, if ResumeKnown.
	ResumedAt   int64
	ResumeKnown bool
	// Saves are those of the rank's present process; nil: unknown.
	Saves *Saves
	// Span is over how many consecutive ranks the state in memory is divided: rank r and rank r + Span hold the same part. 1: this rank holds
	// all of it. SpanAll: over all ranks, however many there are. 0: unknown.
	Span int
	// Grouped: restore was called after the process group was made, so that another rank can give this one its state there.
	Grouped bool
}

// Saves counts the saves of one process, by result, from 0.
type Saves struct {
	// Copied counts copied saves; Overlapped those of them that were copied during training, the others inside save. Dropped ones began
	// during training and were given up because their source changed.
	Copied, Overlapped, Dropped uint32
	// Skipped saves found no free slot in time; Refused ones had a state that cannot be stored.
	Skipped, Refused uint32
}

// Holds reports whether the rank holds a step of that number.
func (r *Rank) Holds(step int64) bool {
	return slices.ContainsFunc(r.Sealed, func(p Point) bool { return p.Step == step })
}

// Newest returns the number of the newest step that the rank holds; 0: none.
func (r *Rank) Newest() int64 {
	if len(r.Sealed) == 0 {
		return 0
	}
	return r.Sealed[len(r.Sealed)-1].Step
}

// SpanAll is a Rank.Span: with more ranks the state is divided over more.
const SpanAll = math.MaxUint32
