package ckptagent

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Phase is what holds of the newest generation in this pod.
//
//	         start                 all exit 0
//	Idle ───────────▶ Running ──────────────▶ Finished
//	  │      ▲           │ one exits badly        │
//	  │      │           ▼                        │
//	  │      │        Failed                      │
//	  │      │ start     │ all gone, inventory    │
//	  └──▶ Halted ◀──────┴────────────────────────┘
type Phase string

const (
	// Idle: no process of any generation has run in this container.
	Idle Phase = "Idle"
	// Running: the ranks of the generation were started and none has ended badly.
	Running Phase = "Running"
	// Failed: a rank ended badly; others may still run.
	Failed Phase = "Failed"
	// Finished: all ranks ended with exit code 0.
	Finished Phase = "Finished"
	// Halted: all processes of the generation and below are gone and the inventory is taken.
	Halted Phase = "Halted"
)

// Order is what the coordinator wants; the values are those of the protocol.
type Order int

// The orders of the protocol.
const (
	OrderNone Order = iota
	OrderWait
	OrderRun
	OrderHalt
	OrderExit
)

// Directive is all that the agent must do now.
type Directive struct {
	Generation       uint64
	Order            Order
	Run              Run
	Common, Frontier uint64
	ExitCode         int
	Reason           string

	// Since version 2 of the protocol; zero from a coordinator of version 1.

	Hold        uint64
	Copy, Fetch Mark
	Manifest    Manifest
	// WantModules: reports are to name the modules that standbys import; Modules names them for an agent that knows none.
	WantModules bool
	Modules     []string
	// WholeCommand: the other pods of the gang run their whole command as one rank.
	WholeCommand bool
	// Launched comes with OrderHalt: other pods of the gang start their ranks with a launcher, or all did, so that a whole command may
	// start its own yet.
	Launched bool
}

// Run is this pod's share of one generation.
type Run struct {
	Number       uint64 `json:"number"`
	WorldSize    int    `json:"worldSize"`
	BaseRank     int    `json:"baseRank"`
	NodeRank     int    `json:"nodeRank"`
	Nodes        int    `json:"nodes"`
	MasterAddr   string `json:"masterAddr"`
	MasterPort   int    `json:"masterPort"`
	RestoreStep  uint64 `json:"restoreStep"`
	RestartCount int    `json:"restartCount"`
}

// State is all that the agent knows. A restart of the agent is the Durable part of the one before with a fresh Volatile.
//
// Its methods have value receivers: they answer and change nothing. What changes a state is a method of machine.
//
// Invariants: Clean is false from before the first process of a generation is started until all are
// proven gone; Generation never falls; Run.Number is the generation that the ranks belong to;
// Returned, once set, never changes.
type State struct {
	Durable
	Volatile `json:"-"`
}

// Durable is what must not be forgotten.
type Durable struct {
	Incarnation uint64 `json:"incarnation"`
	// Containers is how many this pod has had; 0: not known.
	Containers uint64 `json:"containers,omitempty"`
	// Forgot: the agent before left nothing that can be read. The first generation that the coordinator names
	// counts as one that ran here.
	Forgot bool `json:"forgot,omitempty"`
	// Generation is the highest that was run, or halted, here.
	Generation uint64 `json:"generation"`
	Phase      Phase  `json:"phase"`
	Run        Run    `json:"run"`
	// Clean: no process of any generation is left.
	Clean bool `json:"clean"`
	// Inventoried: the sealed steps of the ranks are final for what has run.
	Inventoried bool `json:"inventoried"`
	// Known: an inventory was taken in this container.
	Known bool `json:"known"`
	// Past is where the history of the gang last went back to, as far as this pod was told.
	Past Past `json:"past"`
	// Ranks is the number of ranks that the launcher asked for; 0: it has not run.
	Ranks int    `json:"ranks"`
	Rank  []Rank `json:"rank,omitempty"`
	// Nodes is the number of pods that the launcher asked for, and NodesFlag how; 0: it said nothing.
	Nodes     int    `json:"nodes,omitempty"`
	NodesFlag string `json:"nodesFlag,omitempty"`
	// NodesRemedy is what to do where the gang has another number of pods, if it is not to leave the flag out.
	NodesRemedy string `json:"nodesRemedy,omitempty"`
	// Launcher names the launcher process that is served; another one is refused.
	Launcher string    `json:"launcher,omitempty"`
	Returned *Returned `json:"returned,omitempty"`
	Refused  string    `json:"refused,omitempty"`
	// Command is the container's own command, as init began it; zero: nothing was told of it.
	Command Command `json:"command,omitzero"`
	// Whole: the command counts as the one rank of this pod. Original: its run that init began is the present one.
	Whole    bool `json:"whole,omitempty"`
	Original bool `json:"original,omitempty"`
	// LeftForLauncher is the newest generation that this pod left, or did not begin, because a launcher starts its ranks, or is
	// awaited to.
	LeftForLauncher uint64 `json:"leftForLauncher,omitempty"`
	// Concluded is how the container ends once nothing of its command is left.
	Concluded *Returned `json:"concluded,omitempty"`
	// Unprotected says what runs where no rank does; empty: ranks run, or it is too early to say.
	Unprotected string `json:"unprotected,omitempty"`
	Shutdown
	Timeline Timeline `json:"timeline"`
	// Hold is what the arenas were told; Manifested the newest manifest that was written here.
	Hold       uint64 `json:"hold,omitempty"`
	Manifested Mark   `json:"manifested,omitzero"`
}

// Volatile is true of this incarnation only, or is learned again.
type Volatile struct {
	// Common and Frontier are the gang's levels as the arenas were told them.
	Common   uint64
	Frontier uint64

	Want Directive
	// Modules are what standbys import, where that is known to work, here or in other pods of the gang.
	Modules []string
	// Attached: the launcher's command, environment and output are at hand.
	Attached bool
	// Ending, Counting and Looking: the effect is under way.
	Ending, Counting, Looking bool
	// Copying, Manifesting and Fetching are what the store was told to do, Fetched and FetchFailed what came of it.
	Copying, Manifesting, Fetching Mark
	Fetched, FetchFailed           Mark
	// FetchFailedAt is when the newest fetch could not be done.
	FetchFailedAt time.Time
	// CopyTook is what the newest copy cost.
	CopyTook time.Duration
	// Dismissed: the pod was taken out of its Job, or that is over.
	Dismissed bool
	// AloneSince is when the coordinator was lost; zero: it is there.
	AloneSince time.Time
	// Storage: it is mounted and can be written. Grace is the pod's, 0: unknown.
	// Unsure: it is not known yet whether it is.
	Unsure  bool
	Storage bool
	Grace   time.Duration
	// Warm: standbys may be warmed now.
	Warm       bool
	Port       int
	StateBytes uint64
	Notes      []string
}

// Past says that Generation restores Step: steps above it that were sealed before Generation are given up.
type Past struct {
	Generation uint64 `json:"generation,omitempty"`
	Step       uint64 `json:"step,omitempty"`
}

// Returned is what the launcher was told to return.
type Returned struct {
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

// Rank is one local rank.
type Rank struct {
	PID         int      `json:"pid,omitempty"`
	Alive       bool     `json:"alive,omitempty"`
	FromStandby bool     `json:"fromStandby,omitempty"`
	Attached    bool     `json:"attached,omitempty"`
	Restored    bool     `json:"restored,omitempty"`
	Stepped     bool     `json:"stepped,omitempty"`
	Step        uint64   `json:"step,omitempty"`
	Sealed      []uint64 `json:"sealed,omitempty"`
	Exit        *Exit    `json:"exit,omitempty"`
	// Copied is the newest step of this rank that this pod copied to storage.
	Copied Copy `json:"copied,omitzero"`
	// OptimizerSteps are those that the process has finished, as the site hook counts them; 0: none, or not known.
	OptimizerSteps uint64 `json:"optimizerSteps,omitempty"`
	// ResumedAt is how many optimizer steps the restored state held before the first of them, where ResumeKnown.
	ResumedAt   uint64 `json:"resumedAt,omitempty"`
	ResumeKnown bool   `json:"resumeKnown,omitempty"`

	StandbyReady bool `json:"-"`
}

// Exit is how a rank's process ended by itself, or by the hand of others than the agent.
type Exit struct {
	Code      int       `json:"code"`
	Signal    int       `json:"signal,omitempty"`
	At        time.Time `json:"at"`
	Traceback string    `json:"traceback,omitempty"`
}

// Timeline covers one repair; a zero time was not reached.
type Timeline struct {
	Detected     time.Time `json:"detected,omitzero"`
	HaltReceived time.Time `json:"haltReceived,omitzero"`
	Stopped      time.Time `json:"stopped,omitzero"`
	Verified     time.Time `json:"verified,omitzero"`
	RunReceived  time.Time `json:"runReceived,omitzero"`
	// Started is when the last rank's process ran or, where scripts use the client, had attached.
	Started   time.Time `json:"started,omitzero"`
	Restored  time.Time `json:"restored,omitzero"`
	FirstStep time.Time `json:"firstStep,omitzero"`
}

// New is the state of an agent in a fresh pod.
func New() State { return State{Durable: Durable{Phase: Idle, Clean: true}} }

// Forgotten is the state of an agent that finds that something ran before it and cannot read what. Processes
// may be left, and a generation that it is told of may have run.
func Forgotten(incarnation uint64) State {
	return State{Durable: Durable{Phase: Failed, Incarnation: incarnation, Forgot: true}}
}

// Serves says whether a launcher named id is the one that this pod serves, and if not why.
func (s State) Serves(id string) (bool, string) {
	switch {
	case s.Whole && !s.releasable():
		return false, "the whole command of this container is one rank already, because no launcher came in time, and is restarted as one; name the launcher in the container's command (torchrun …, or a shell line that holds it), start it within a minute, give it longer by the variable HOLDFAST_LAUNCHER_PATIENCE_SECONDS of the container, or take the annotation holdfast.dev/enabled off the job"
	case s.Launcher == "" || s.Launcher == id:
		return true, ""
	case s.Returned != nil:
		return false, "a launcher has run in this container already, and holdfast runs one per container; put further work into the same script, or into another job"
	default:
		return false, "a launcher runs in this container already, and holdfast runs one per container; ask it for more ranks instead (--nproc-per-node)"
	}
}

// Matches says whether a launcher asks for as many pods as the gang has, as far as that is known, and if not why. One that does not
// must not take a whole command out of its generation: the gang could not go on.
func (s State) Matches(e Launched) (bool, string) { return e.fits(s.Run) }

// fits says whether a launcher asks for as many pods as a generation has, and if not why.
func (e Launched) fits(run Run) (bool, string) {
	if e.Nodes == 0 || run.Nodes == 0 || e.Nodes == run.Nodes {
		return true, ""
	}
	remedy := cmp.Or(e.NodesRemedy, "leave the flag out, or make it equal to the job's parallelism")
	return false, fmt.Sprintf("%s: asks for %d, the gang has %d pods; %s", e.NodesFlag, e.Nodes, run.Nodes, remedy)
}

// Stored is what must be stored: the durable part without what rises with each step while ranks run and stands
// in their arenas and on their pages.
func (s State) Stored() Durable {
	d := s.clone().Durable
	for i := range d.Rank {
		if !d.Clean {
			d.Rank[i].Step, d.Rank[i].Sealed = 0, nil
			d.Rank[i].OptimizerSteps, d.Rank[i].ResumedAt, d.Rank[i].ResumeKnown = 0, 0, false
		}
	}
	return d
}

// clone copies what Step may change in place.
func (s State) clone() State {
	s.Rank = slices.Clone(s.Rank)
	return s
}
