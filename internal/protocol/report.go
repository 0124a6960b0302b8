package protocol

import (
	"slices"
	"time"
)

// Report is all that an agent knows. It is sent when anything has changed, and every second.
type Report struct {
	// Protocol is the version that the agent speaks.
	Protocol int
	// Incarnation rises with each start of the agent in this pod, Sequence with each report of one that says something else than the one
	// before. Of two reports the one with the higher Incarnation counts, then the one with the higher Sequence; an agent that is older
	// than the latter says 0, and its reports count as they arrive.
	Incarnation uint64
	Sequence    uint64
	// Containers is how many containers this pod has had: it rises where one ended, in whatever way, and was started again. 0: not known.
	Containers uint64
	// Ranks is how many the user's launcher asked for on this pod; 0 until it has run, and until it is known which steps they hold.
	Ranks int
	// Address is where other pods reach this one, Port where rank 0's store may listen in the next generation (probed free just now);
	// 0: none yet.
	Address string
	Port    int
	// Generation is the highest that this agent has ever run, or was told to run or to halt. It outlives the agent's process, so that a
	// new incarnation never starts a generation for the second time.
	Generation int64
	State      AgentState
	// Rank has one entry per local rank, in order, once a generation has run.
	Rank []Rank
	// StateBytes is what memory can hold per rank; 0: state in memory is off.
	StateBytes uint64
	// Notes say why state in memory or standbys are off or degraded; for people.
	Notes []string
	// Refused is why the launcher could not be honoured (unknown flag, bad value); the pod will exit by itself.
	Refused string
	// Terminating: the pod is being shut down.
	Terminating bool
	Timeline    Timeline
	// Storage: it is mounted and was found writable; steps can be copied there and fetched from there.
	Storage bool
	// Grace is how long this pod has between SIGTERM and SIGKILL, as far as the agent was told; 0: unknown.
	Grace time.Duration
	// Manifested is the newest manifest that this agent wrote on the coordinator's word.
	Manifested Mark
	// FetchFailed is the fetch that was tried and cannot succeed: a file is missing, torn or of another size.
	FetchFailed Mark
	// CopyTook is what the newest copy of a step to storage cost; for people.
	CopyTook time.Duration
	// BarrierStep is the one that the arenas of this pod were told; 0: none. An agent of version 2 may be too old to say it.
	BarrierStep int64
	// WholeCommand: the pod's one rank is its whole command. No launcher that the agent can stand in for was started, and a failure
	// restarts all of it.
	WholeCommand bool
	// LeftForLauncher is the newest generation that this pod left, or did not begin, because a launcher starts its ranks, or is awaited
	// to, and no whole command is one any more. No rank failed. 0: none.
	LeftForLauncher int64
	// Unprotected says what runs in the container where no rank was started within a minute of the command's begin; "": ranks run, or it
	// is too early to say. For people.
	Unprotected string
	// ModulesKnown is how many modules standbys of this pod import; 0: not known yet. Modules are the names of imported modules, in
	// order, while the directive requests them.
	ModulesKnown int
	Modules      []string
	// Launch is the number of the launcher that is served, or awaited, of those that the container's command runs one after another, from 1;
	// 0: the agent is of a version that serves one launcher per container. Another container begins with its first launcher again.
	Launch int
	// Returned is the number of the newest launcher that has returned 0, or 1 once a whole command has ended with 0 and its container
	// with it; 0: none. What has returned takes part in no further generation of that launcher.
	Returned int
	// MaxRestarts is how many restarts of its ranks, or of the whole command, the launcher or the job allows; nil: nobody has said.
	MaxRestarts *int
	// Waited counts the ranks that handle SIGTERM and were waited for when the newest generation was ended in this pod, WaitedFor says how
	// long.
	Waited    int
	WaitedFor time.Duration
}

// Rank is what an agent tells of one of its ranks.
type Rank struct {
	Local int
	// Sealed are the steps that lie whole and verified in this rank's memory, ascending by number. An agent that knows no branches says
	// that all are of the first.
	Sealed []Point
	// Step is the newest that the script told of (save or step call); 0: none.
	Step int64
	// Exit is kept until the next generation starts.
	Exit         *Exit
	StandbyReady bool
	PID          int
	// FromStandby: the process was a warm standby.
	FromStandby bool
	// Copied is the newest step of this rank that this pod copied to storage.
	Copied Copied
	// OptimizerSteps are those that the process has finished in this generation, counted without the script's help; 0: none, or not
	// known. Every process begins at 0, whatever its script has restored.
	OptimizerSteps int64
	// ResumedAt is how many optimizer steps the restored state held before the first of them, where ResumeKnown.
	ResumedAt   int64
	ResumeKnown bool
	// Saves are those of the process that the rank's client speaks for; nil: not known.
	Saves *Saves
}

// Saves counts what became of the saves of one process, from 0.
type Saves struct {
	// Copied are those whose state was copied: Overlapped beside training, the others inside save. Dropped began beside training and were
	// given up, because their source changed.
	Copied, Overlapped, Dropped uint32
	// Skipped found no free slot in time; Refused were of a state that cannot be held.
	Skipped, Refused uint32
}

// Holds reports whether the rank holds a step of that number.
func (r *Rank) Holds(step int64) bool {
	return slices.ContainsFunc(r.Sealed, func(p Point) bool { return p.Step == step })
}

// Newest is the number of the newest step that the rank holds; 0: none.
func (r *Rank) Newest() int64 {
	if len(r.Sealed) == 0 {
		return 0
	}
	return r.Sealed[len(r.Sealed)-1].Step
}
