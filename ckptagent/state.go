package ckptagent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// State is all that the agent knows. A restart of the agent is the Durable part of the one before with a fresh Volatile. Its Phase is that
// of the newest generation in this pod:
//
//	         start                 all exit 0
//	Idle ───────────▶ Running ──────────────▶ Finished
//	  │      ▲           │ one exits badly        │
//	  │      │           ▼                        │
//	  │      │        Failed                      │
//	  │      │ start     │ all gone, inventory    │
//	  └──▶ Halted ◀──────┴────────────────────────┘
//
// Its methods have value receivers: they answer and change nothing. What changes a state is a method of machine.
//
// Invariants: Clean is false from before the first process of a generation is started until all are
// proven gone; Generation never falls; Run.Number is the generation that the ranks belong to;
// Launch never falls in a container, and Returned, once set for a launcher, never changes.
type State struct {
	Durable
	Volatile `json:"-"`
}

// Durable is what must not be forgotten.
type Durable struct {
	// What is reported as it stands here means what protocol.Report says of it.

	Incarnation uint64 `json:"incarnation"`
	Containers  uint64 `json:"containers,omitempty"`
	// StateLost: the previous agent left nothing that can be read. The first generation that the coordinator names
	// counts as one that ran here.
	StateLost  bool                `json:"stateLost,omitempty"`
	Generation int64               `json:"generation"`
	Phase      protocol.AgentState `json:"phase"`
	Run        protocol.Run        `json:"run"`
	// Clean: no process of any generation is left.
	Clean bool `json:"clean"`
	// Inventoried: the sealed steps of the ranks are final for what has run.
	Inventoried bool `json:"inventoried"`
	// Known: an inventory was taken in this container.
	Known bool `json:"known"`
	// Abandoned is where the gang's history last went back to, as far as this pod knows.
	Abandoned Abandoned `json:"abandoned"`
	// Ranks is the number of ranks that the launcher asked for; 0: no launcher has run.
	Ranks int    `json:"ranks"`
	Rank  []Rank `json:"rank,omitempty"`
	// Nodes is the number of pods that the launcher asked for, and NodesFlag how; 0: it said nothing.
	Nodes     int    `json:"nodes,omitempty"`
	NodesFlag string `json:"nodesFlag,omitempty"`
	// NodesRemedy is what to do where the gang has another number of pods, if it is not to leave the flag out.
	NodesRemedy string `json:"nodesRemedy,omitempty"`
	// MaxRestarts is how many restarts the launcher allows; nil: it has not said.
	MaxRestarts *int `json:"maxRestarts,omitempty"`
	// Launch counts the launchers that this container has served, Launcher names the process of the newest, Returned is what that was told:
	// until then another one is refused.
	Launch   int       `json:"launch,omitempty"`
	Launcher string    `json:"launcher,omitempty"`
	Returned *Returned `json:"returned,omitempty"`
	Refused  string    `json:"refused,omitempty"`
	// Command is the container's own command, as init began it; zero: unknown.
	Command Command `json:"command,omitzero"`
	// Whole: the command counts as the one rank of this pod. FirstRun: the run that init started is the present one.
	Whole           bool  `json:"whole,omitempty"`
	FirstRun        bool  `json:"firstRun,omitempty"`
	LeftForLauncher int64 `json:"leftForLauncher,omitempty"`
	// Concluded is how the container ends once nothing of its command is left.
	Concluded   *Returned `json:"concluded,omitempty"`
	Unprotected string    `json:"unprotected,omitempty"`
	Shutdown
	// Waited counts the ranks that handle SIGTERM and were waited for when the newest generation was ended here, WaitedFor says how long.
	Waited      int               `json:"waited,omitempty"`
	WaitedFor   time.Duration     `json:"waitedFor,omitempty"`
	Timeline    protocol.Timeline `json:"timeline"`
	BarrierStep int64             `json:"barrierStep,omitempty"`
	Manifested  protocol.Mark     `json:"manifested,omitzero"`
}

// Volatile is true of this incarnation only, or is learned again.
type Volatile struct {
	// CommonStep and ReclaimBelow are the gang's levels as written into the arenas.
	CommonStep   int64
	ReclaimBelow int64
	// DurableStep is the newest durable step of the gang, as written into the arenas in this generation.
	DurableStep protocol.Point

	Want protocol.Directive
	// Modules are what standbys import, where that is known to work, here or in other pods of the gang.
	Modules []string
	// Attached: the launcher's command, environment and output are at hand.
	Attached bool
	// Ending, Counting and Inspecting: the effect is under way. EndingSince is when the newest end began.
	Ending, Counting, Inspecting bool
	EndingSince                  time.Time
	// Copying, Manifesting and Fetching are the store's present tasks, Fetched and FetchFailed the results of the last fetch.
	Copying, Manifesting, Fetching protocol.Mark
	Fetched, FetchFailed           protocol.Mark
	// FetchFailedAt is when the newest fetch could not be done.
	FetchFailedAt time.Time
	// CopyTook is what the newest copy cost.
	CopyTook time.Duration
	// DetachedFromJob: the pod was taken out of its Job, or that is over.
	DetachedFromJob bool
	// DisconnectedSince is when the coordinator was lost; zero: it is there.
	DisconnectedSince time.Time
	// WaitsSince is since when nothing runs of a launcher, or of a whole command, that waits for a generation; zero: something
	// runs.
	WaitsSince time.Time
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

// Abandoned says that Generation restores Step of Branch: what was sealed before Generation above it, or of another branch, is
// discarded.
type Abandoned struct {
	Generation int64 `json:"generation,omitempty"`
	Step       int64 `json:"step,omitempty"`
	Branch     int64 `json:"branch,omitempty"`
}

// abandonedBy is what a generation gives up.
func abandonedBy(run protocol.Run) Abandoned {
	return Abandoned{Generation: run.Number, Step: run.RestoreStep, Branch: run.RestoreBranch}
}

// Restores is the step from which Generation started.
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
	StandbyReady   bool             `json:"-"`
	// Saves counts the saves in the arena.
	Saves *protocol.Saves `json:"-"`
}

func (r Rank) holds(step int64) bool {
	return slices.ContainsFunc(r.Sealed, func(p protocol.Point) bool { return p.Step == step })
}

// New is the state of an agent in a fresh pod.
func New() State { return State{Durable: Durable{Phase: protocol.StateIdle, Clean: true}} }

// StateLost returns the state of an agent that finds traces of an earlier agent and cannot read its stored state.
func StateLost(incarnation uint64) State {
	return State{Durable: Durable{Phase: protocol.StateFailed, Incarnation: incarnation, StateLost: true}}
}

// Serves reports whether a launcher named id is the one that this pod serves, and why not.
func (s State) Serves(id string) (bool, string) {
	switch {
	case s.Whole && !s.releasable():
		return false, "the whole command of this container is one rank already, because no launcher came in time, and is restarted as one; name the launcher in the container's command (torchrun …, or a shell line that holds it), start it within a minute, give it longer by the variable HOLDFAST_LAUNCHER_TIMEOUT_SECONDS of the container, or take the annotation holdfast.dev/enabled off the job"
	case s.Launcher == "" || s.Launcher == id:
		return true, ""
	case s.Returned != nil && s.Returned.Code == 0:
		return true, "" // the next one
	case s.Returned != nil:
		return false, fmt.Sprintf("the launcher before it has ended with exit code %d, and nothing is started after that: let the command end with it", s.Returned.Code)
	default:
		return false, "a launcher runs in this container already, and holdfast runs one at a time; run them one after another, or start more ranks with one (--nproc-per-node)"
	}
}

// Matches reports whether a launcher asks for as many pods as the gang has, as far as that is known, and why not. One
// that does not must not take a whole command out of its generation: the gang could not go on.
func (s State) Matches(e Launched) (bool, string) { return e.fits(s.Run) }

// fits reports whether a launcher asks for as many pods as a generation has, and if not why.
func (e Launched) fits(run protocol.Run) (bool, string) {
	if e.Nodes == 0 || run.Nodes == 0 || e.Nodes == run.Nodes {
		return true, ""
	}
	remedy := cmp.Or(e.NodesRemedy, "leave the flag out, or make it equal to the job's parallelism")
	return false, fmt.Sprintf("%s: requests %d, the gang has %d pods; %s", e.NodesFlag, e.Nodes, run.Nodes, remedy)
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
