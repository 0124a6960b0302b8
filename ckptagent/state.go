package ckptagent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// State is the whole state of the agent. After a restart it is the stored Durable part with a fresh Volatile. Phase is that of the newest
// generation in this pod:
//
//	         start                 all exit 0
//	Idle ───────────▶ Running ──────────────▶ Finished
//	  │      ▲           │ one exits badly        │
//	  │      │           ▼                        │
//	  │      │        Failed                      │
//	  │      │ start     │ all gone, inventory    │
//	  └──▶ Halted ◀──────┴────────────────────────┘
//
// Its methods have value receivers and change nothing. Methods of machine change a state.
//
// Invariants: Clean is false from before the first process of a generation is started until all are proven gone; Generation never
// decreases; Run.Number is the generation of the ranks; Launch never decreases in a container; Returned, once set for a launcher, never
// changes.
type State struct {
	Durable
	Volatile `json:"-"`
}

// Durable is the part that must be stored.
type Durable struct {
	// Fields that are reported unchanged have the meaning in protocol.Report.

	Incarnation uint64 `json:"incarnation"`
	Containers  uint64 `json:"containers,omitempty"`
	// StateLost: the previous agent left no readable state. The first generation that the coordinator orders counts as one that ran here.
	StateLost  bool                `json:"stateLost,omitempty"`
	Generation int64               `json:"generation"`
	Phase      protocol.AgentState `json:"phase"`
	Run        protocol.Run        `json:"run"`
	// Clean: no process of any generation is left.
	Clean bool `json:"clean"`
	// Inventoried: the recorded sealed steps are final for the last generation that ran.
	Inventoried bool `json:"inventoried"`
	// Known: an inventory was taken in this container.
	Known bool `json:"known"`
	// Abandoned is the newest rollback of the gang's training that this pod knows.
	Abandoned Abandoned `json:"abandoned"`
	// Ranks is the number of ranks that the launcher requests; 0: no launcher has run.
	Ranks int    `json:"ranks"`
	Rank  []Rank `json:"rank,omitempty"`
	// Nodes is the number of pods that the launcher requests, NodesFlag the flag; 0: no request.
	Nodes     int    `json:"nodes,omitempty"`
	NodesFlag string `json:"nodesFlag,omitempty"`
	// NodesRemedy is the remedy if the gang has another number of pods; empty: leave the flag out.
	NodesRemedy string `json:"nodesRemedy,omitempty"`
	// MaxRestarts is the launcher's limit of restarts; nil: none was given.
	MaxRestarts *int `json:"maxRestarts,omitempty"`
	// Launch counts the launchers that this container has served, Launcher identifies the newest, Returned is its result: until it is set,
	// another launcher is refused.
	Launch   int       `json:"launch,omitempty"`
	Launcher string    `json:"launcher,omitempty"`
	Returned *Returned `json:"returned,omitempty"`
	Refused  string    `json:"refused,omitempty"`
	// Command is the container's command that init started; zero: unknown.
	Command Command `json:"command,omitzero"`
	// Whole: the command counts as the one rank of this pod. FirstRun: the run that init started is the present one.
	Whole           bool  `json:"whole,omitempty"`
	FirstRun        bool  `json:"firstRun,omitempty"`
	LeftForLauncher int64 `json:"leftForLauncher,omitempty"`
	// Concluded is the container's result once all processes of its command are gone.
	Concluded   *Returned `json:"concluded,omitempty"`
	Unprotected string    `json:"unprotected,omitempty"`
	Shutdown
	// Waited is the number of ranks that handled SIGTERM when the newest generation was ended here, WaitedFor how long they took.
	Waited      int               `json:"waited,omitempty"`
	WaitedFor   time.Duration     `json:"waitedFor,omitempty"`
	Timeline    protocol.Timeline `json:"timeline"`
	BarrierStep int64             `json:"barrierStep,omitempty"`
	Manifested  protocol.Mark     `json:"manifested,omitzero"`
	Checking
}

// Volatile is the part that belongs to this incarnation or is received again.
type Volatile struct {
	// CommonStep and ReclaimBelow are the gang's levels as written into the arenas.
	CommonStep   int64
	ReclaimBelow int64
	// DurableStep is the newest durable step of the gang, as written into the arenas in this generation.
	DurableStep protocol.Point

	Want protocol.Directive
	// Modules are what standbys import, if some pod of the gang has imported them without error.
	Modules []string
	// Attached: the agent has the launcher's command, environment and output.
	Attached bool
	// Ending, Counting and Inspecting: the effect is under way. EndingSince is when the newest end began.
	Ending, Counting, Inspecting bool
	EndingSince                  time.Time
	// Copying, Manifesting and Fetching are the store's present tasks, Fetched and FetchFailed the results of the last fetch.
	Copying, Manifesting, Fetching protocol.Mark
	// Awaiting is the copy that is expected.
	Awaiting             AwaitCopy
	Fetched, FetchFailed protocol.Mark
	// FetchFailedAt is when the newest fetch failed.
	FetchFailedAt time.Time
	// CopyTook is how long the newest copy took.
	CopyTook time.Duration
	// DetachedFromJob: the pod was released from its Job, or the Job is over.
	DetachedFromJob bool
	// DisconnectedSince is when the coordinator was lost; zero: it is connected.
	DisconnectedSince time.Time
	// WaitsSince is since when a launcher or a whole command without running ranks has waited for a generation; zero: it does not wait.
	WaitsSince time.Time
	// Storage: it is mounted and can be written. Unsure: it has not answered yet. Grace is the pod's grace period, 0: unknown.
	Unsure  bool
	Storage bool
	Grace   time.Duration
	// Warm: standbys may be warmed now.
	Warm       bool
	Port       int
	StateBytes uint64
	Notes      []string
	Looking
	// EndingTrial: the trial under way is being ended.
	EndingTrial bool
}

// Abandoned records that Generation restores Step of Branch: steps sealed before Generation above that step, or of another branch, are
// discarded.
type Abandoned struct {
	Generation int64 `json:"generation,omitempty"`
	Step       int64 `json:"step,omitempty"`
	Branch     int64 `json:"branch,omitempty"`
}

// abandonedBy returns what a generation gives up.
func abandonedBy(run protocol.Run) Abandoned {
	return Abandoned{Generation: run.Number, Step: run.RestoreStep, Branch: run.RestoreBranch}
}

// Restores returns the step from which Generation started.
func (a Abandoned) Restores() protocol.Point { return protocol.Point{Branch: a.Branch, Step: a.Step} }

// Returned is the exit code that the launcher received.
type Returned struct {
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

// Rank is one local rank. Its reported fields mean the same as in protocol.Rank.
type Rank struct {
	PID            int              `json:"pid,omitempty"`
	Alive          bool             `json:"alive,omitempty"`
	FromStandby    bool             `json:"fromStandby,omitempty"`
	Attached       bool             `json:"attached,omitempty"`
	Restored       bool             `json:"restored,omitempty"`
	Restoring      bool             `json:"restoring,omitempty"`
	Stepped        bool             `json:"stepped,omitempty"`
	Step           int64            `json:"step,omitempty"`
	Sealed         []protocol.Point `json:"sealed,omitempty"`
	Exit           *protocol.Exit   `json:"exit,omitempty"`
	Copied         protocol.Copied  `json:"copied,omitzero"`
	OptimizerSteps int64            `json:"optimizerSteps,omitempty"`
	ResumedAt      int64            `json:"resumedAt,omitempty"`
	ResumeKnown    bool             `json:"resumeKnown,omitempty"`
	Span           int              `json:"span,omitempty"`
	Grouped        bool             `json:"grouped,omitempty"`
	StandbyReady   bool             `json:"-"`
	// Saves counts the saves in the arena.
	Saves *protocol.Saves `json:"-"`
}

func (r Rank) holds(step int64) bool {
	return slices.ContainsFunc(r.Sealed, func(p protocol.Point) bool { return p.Step == step })
}

// New returns the state of an agent in a new pod.
func New() State { return State{Durable: Durable{Phase: protocol.StateIdle, Clean: true}} }

// StateLost returns the state of an agent that finds traces of an earlier agent and cannot read its stored state.
func StateLost(incarnation uint64) State {
	return State{Durable: Durable{Phase: protocol.StateFailed, Incarnation: incarnation, StateLost: true}}
}

// Serves reports whether a launcher named id may be served, and if not why.
func (s State) Serves(id string) (bool, string) {
	switch {
	case s.Whole && !s.releasable():
		return false, "the whole command of this container is one rank already, because no launcher came in time, and is restarted as one; name the launcher in the container's command (torchrun …, or a shell line that holds it), start it within a minute, give it longer by the variable HOLDFAST_LAUNCHER_TIMEOUT_SECONDS of the container, or take the annotation holdfast.dev/enabled off the job"
	case s.Launcher == "" || s.Launcher == id:
		return true, ""
	case s.Returned != nil && s.Returned.Code == 0:
		return true, "" // the next launcher
	case s.Returned != nil:
		return false, fmt.Sprintf("the launcher before it has ended with exit code %d, and nothing is started after that: let the command end with it", s.Returned.Code)
	default:
		return false, "a launcher runs in this container already, and holdfast runs one at a time; run them one after another, or start more ranks with one (--nproc-per-node)"
	}
}

// Matches reports whether a launcher requests as many pods as the gang has, if that is known, and if not why. A launcher that does not
// match must not replace a whole command in its generation: the gang could not continue.
func (s State) Matches(e Launched) (bool, string) { return e.fits(s.Run) }

// fits reports whether a launcher requests as many pods as a generation has, or as its gang has that may go on with fewer, and if not why.
func (e Launched) fits(run protocol.Run) (bool, string) {
	if e.Nodes == 0 || run.Nodes == 0 || e.Nodes == run.Nodes || e.Nodes == run.Slots {
		return true, ""
	}
	remedy := cmp.Or(e.NodesRemedy, fmt.Sprintf("leave the flag out, or write %d", run.Nodes))
	return false, fmt.Sprintf("%s: requests %d, the gang has %d pods; %s", e.NodesFlag, e.Nodes, run.Nodes, remedy)
}

// Stored returns what must be stored: the durable part without values that change with each step and are in the arenas and pages.
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
