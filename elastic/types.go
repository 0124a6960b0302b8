package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// Slot is the place of one pod in its gang, from 0.
type Slot int

// Phase is what a gang does now.
type Phase string

const (
	// Forming waits until every slot holds an agent that can start the next generation.
	Forming Phase = "Forming"
	// Running has handed the newest generation out.
	Running Phase = "Running"
	// Halting has seen a failure and ends every process of the newest generation.
	Halting Phase = "Halting"
	// Finished is final: all ranks ended with exit code 0.
	Finished Phase = "Finished"
	// GivenUp is final: the verdict says why.
	GivenUp Phase = "GivenUp"
)

// AgentState is the state that an agent reports.
type AgentState int

// The states an agent can be in; their meaning stands in the protocol.
const (
	AgentUnknown AgentState = iota
	AgentIdle
	AgentRunning
	AgentFailed
	AgentHalted
	AgentFinished
)

// Pod names one incarnation of a slot's pod.
type Pod struct {
	UID     string
	Name    string
	Node    string
	Created time.Time
	// Restarted is how its container ended last, as far as that was known when its agent attached; Charged what a container that
	// ends whole costs the Job. Both are for people.
	Restarted, Charged string
}

// Report is the whole present truth of one agent.
type Report struct {
	// Of two reports the one with the higher Incarnation counts, then the one with the higher Sequence; an agent that is older than
	// the latter says 0.
	Incarnation uint64
	Sequence    uint64
	Ranks       int
	Address     string
	Port        int
	Generation  int64
	State       AgentState
	Rank        []Rank
	StateBytes  int64
	Notes       []string
	Refused     string
	Leaving     bool
	Timeline    Timeline

	// Protocol is the version that the agent speaks; what follows is of version 2.
	Protocol    int
	Storage     bool
	Grace       time.Duration // 0: unknown
	Manifested  Mark
	FetchFailed Mark
	// Hold is the one that was passed on to the arenas; an agent that was built before it could say so says 0.
	Hold int64
	// WholeCommand: the pod's one rank is its whole command, which a failure restarts.
	WholeCommand bool
	// LeftForLauncher is the newest generation that the pod left, or did not begin, because a launcher starts its ranks, or is awaited
	// to; 0: none.
	LeftForLauncher int64
	// Unprotected says what runs in the container where no rank does; "": ranks run, or it is too early to say.
	Unprotected string
	// Containers is how many the pod has had; 0: not known.
	Containers uint64
}

// Rank is what an agent knows of one of its ranks.
type Rank struct {
	Local        int
	Sealed       []int64 // ascending
	Step         int64
	Exit         *Exit
	StandbyReady bool
	FromStandby  bool
	Copied       Copied
	// OptimizerSteps are those that the process has finished in this generation; 0: none, or not known.
	OptimizerSteps int64
	// ResumedAt is how many optimizer steps the restored state held before the first of them, where ResumeKnown.
	ResumedAt   int64
	ResumeKnown bool
}

// Mark names a step in storage; the zero Mark is none.
type Mark struct{ Step, Generation int64 }

// Copied is one rank's file in storage.
type Copied struct {
	Mark
	Length   int64
	Checksum uint32
}

// Manifest says that a step lies whole in storage; Ranks has one entry per rank of the world.
type Manifest struct {
	Mark
	Ranks []ManifestRank
	// Recorded are the marks that the record names: only what is older than all of them may be removed.
	Recorded []Mark
}

// ManifestRank is what a Manifest says of one rank's file.
type ManifestRank struct {
	Length   int64
	Checksum uint32
}

// Exit is how a rank's process ended.
type Exit struct {
	Code      int
	Signal    int
	At        time.Time
	Traceback string
}

// Timeline says when an agent reached what in the newest repair; a zero time was not reached.
type Timeline struct {
	Detected, HaltReceived, Stopped, RunReceived, Started, Restored, FirstStep, Verified time.Time
}

// Newer says whether the pod takes the slot over from old.
func (p Pod) Newer(old Pod) bool {
	if p.UID == old.UID {
		return false
	}
	if !p.Created.Equal(old.Created) {
		return p.Created.After(old.Created)
	}
	return p.UID > old.UID
}

// Order is what an agent must do.
type Order int

// The orders; their meaning stands in the protocol.
const (
	OrderNone Order = iota
	OrderWait
	OrderRun
	OrderHalt
	OrderExit
)

// Directive is all that one agent must do now.
type Directive struct {
	Generation int64
	Order      Order
	// Run is the generation for OrderRun; its number and restore step alone for OrderHalt, and for an
	// agent that already runs what an earlier coordinator handed out.
	Run      *Launch
	Common   int64
	Frontier int64
	ExitCode int
	Reason   string
	// WholeCommand: the other pods run their whole command as one rank, so that this one need not wait for a launcher.
	WholeCommand bool
	// Launched comes with OrderHalt: other pods start their ranks with a launcher, or all did, so that a whole command whose first run
	// goes on is not ended: it may start its own yet.
	Launched bool

	// Hold, Copy, Manifest and Fetch are set for agents of protocol 2 alone; their meaning stands there.
	Hold     int64
	Copy     Mark
	Manifest *Manifest
	Fetch    Mark
}

// Launch is one pod's share of a generation.
type Launch struct {
	Number       int64
	WorldSize    int
	BaseRank     int
	NodeRank     int
	Nodes        int
	MasterAddr   string
	MasterPort   int
	RestoreStep  int64
	RestartCount int
}

// StepUnknown is Record.RestoreStep where the store lost the record of a generation that agents have run.
const StepUnknown = -1

// Record is all that must outlive a coordinator. It is what a Gang's status.run holds.
type Record struct {
	Generation  int64
	RestoreStep int64
	Budget
	BestStep   int64
	StartedAt  time.Time
	Phase      Phase
	Progress   Progress
	Recoveries []Recovery // oldest first
	Verdict    *Verdict
	// Replacements counts pods that were replaced.
	Replacements int
	// Durable is the newest step that lies whole in storage, Older the one recorded before it; nil: none. Copies
	// are parts of steps that drained pods left there.
	Durable *StoredStep
	Older   *StoredStep
	Copies  []RankCopy
	// Moved are the suspicions for which a pod was moved.
	Moved []cause.Suspect
	// Doomed are pods that must be replaced and were not yet.
	Doomed []Doom
}

// StoredStep is a step in storage, and when it was whole there.
type StoredStep struct {
	Mark
	At time.Time
}

// RankCopy is one rank's part of a step in storage.
type RankCopy struct {
	Mark
	Rank int
}

// Doom says that a pod must be replaced, and why.
type Doom struct {
	Slot Slot
	Pod  string // UID
	Name string
	Node string
	// Cause is the node's cause, or PodDeleted.
	Cause   string
	Message string
	// At is when that was decided; Deadline is how long the pod's state may be waited for (zero: as deadline.go says).
	At, Deadline time.Time
	// Dead: nothing there can be asked; the pod is fenced.
	Dead bool
}

// JobSuspended is the cause of a Doom where the Job rests: its pods go and none is made in their place for now.
const JobSuspended = "JobSuspended"

// HardwareSuspected is the cause of a Doom where the pod first at fault tries another node.
const HardwareSuspected = "HardwareSuspected"

// PodDeleted is the cause of a Doom where somebody deletes or evicts the pod.
const PodDeleted = "PodDeleted"

// Replacement is a Doom that was carried out; what was not reached is zero.
type Replacement struct {
	Doom
	ReleasedAt time.Time
	// By is the new pod's name, Node where it is.
	By, NewNode string
	AttachedAt  time.Time
}

// Progress is what agents told last.
type Progress struct {
	Ranks         int
	StandbysReady int
	Step          int64
	SavedStep     int64
	SavedAt       time.Time
	// Lost is what recoveries cost; of ResumeUnknown of them it lacks the steps that were done again, because nobody knows where
	// training resumed.
	Lost          time.Duration
	ResumeUnknown int
	// OptimizerSteps are those that every rank has finished in the newest generation, ResumedAt how many the state held that they
	// started from, where ResumeKnown. Scripts that tell no step of their own have these alone.
	OptimizerSteps int64
	ResumedAt      int64
	ResumeKnown    bool
	// StepTime is how long a step took before the newest failure; 0: not known.
	StepTime time.Duration
	Attached []Slot
	Notes    []string
	// Unprotected are the first of the UnprotectedPods in which something runs and no rank does; WholeCommand says that each pod's
	// one rank is its whole command.
	Unprotected     []Unprotected
	UnprotectedPods int
	WholeCommand    bool
	// Waits is what the next generation waits for; "": nothing.
	Waits string
}

// Unprotected is a pod in which no rank runs under its agent, and what runs there.
type Unprotected struct {
	Slot Slot
	Pod  string
	Runs string
}

// Recovery is one repaired failure. A negative duration was not reached (yet).
type Recovery struct {
	Generation      int64
	Cause           cause.Cause
	DetectedAt      time.Time
	Decide          time.Duration
	Stop            time.Duration
	Start           time.Duration
	Restore         time.Duration
	FirstStep       time.Duration
	RestoreStep     int64
	StepsRecomputed int64
	Standbys        int
	Ranks           int
	// EndedAfter is how many optimizer steps a rank had finished at most in the generation that failed, Reached the step up to which
	// all had come, where ReachedKnown. ResumedAt is where training went on, where ResumeKnown. StepsRecomputed follows from the two.
	EndedAfter   int64
	Reached      int64
	ReachedKnown bool
	ResumedAt    int64
	ResumeKnown  bool
	// Drain comes before Stop and holds Decide; Replace and Fetch come after Stop.
	Drain    time.Duration
	Replace  time.Duration
	Fetch    time.Duration
	Replaced []Replacement
}

// NotReached marks a phase of a Recovery that was not reached (yet).
const NotReached time.Duration = -1

// Reason says why a gang ended.
type Reason string

// The reasons of a Verdict; the Gang's conditions carry the same words.
const (
	ReasonFinished         Reason = "Finished"
	ReasonSameFailureTwice Reason = "SameFailureTwice"
	ReasonNoProgress       Reason = "NoProgress"
	ReasonRefused          Reason = "LauncherRefused"
)

// Verdict ends a gang; it never changes.
type Verdict struct {
	Reason   Reason
	ExitCode int
	Cause    *cause.Cause
	At       time.Time
}
