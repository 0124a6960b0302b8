package ckptagent

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Event is something that happened; Step takes one at a time.
type Event interface{ apply(*machine) }

// Resumed starts an incarnation of the agent on the state that the one before left. SameContainer is
// false where the container started anew, so that no process of the old one can be left.
type Resumed struct{ SameContainer bool }

// Launched says that the user's launcher, named ID, requests Ranks ranks; it is repeated after each incarnation.
type Launched struct {
	ID          string
	Ranks       int
	Nodes       int
	NodesFlag   string
	NodesRemedy string
	// MaxRestarts is how many restarts it allows; nil: it has not said.
	MaxRestarts *int
}

// LaunchRefused says that a launcher could not be honoured.
type LaunchRefused struct{ Message string }

// Directed brings a directive.
type Directed struct{ Directive protocol.Directive }

// Started says that a rank's process runs.
type Started struct {
	Generation  int64
	Local, PID  int
	FromStandby bool
}

// Exited says that a rank's process ended, or could not be started.
type Exited struct {
	Generation int64
	Local      int
	// TracebackAt is when the traceback was written; zero: there is none, or that is not known.
	TracebackAt time.Time
	protocol.Exit
}

// Gone answers End: no process of any generation is left. Tracebacks holds, by local rank, what ranks
// that the agent ended had written before. Waited are the local ranks that handle SIGTERM and were waited for.
type Gone struct {
	Tracebacks map[int]Traceback
	Waited     []int
}

// Traceback is a traceback and when it was written.
type Traceback struct {
	Text string
	At   time.Time
}

// Inventoried answers TakeInventory: the sealed and verified steps of each local rank.
type Inventoried struct{ Sealed [][]protocol.Point }

// Progress is what a rank's client said, or what its arena holds.
type Progress struct {
	Generation int64
	Local      int
	// Attached: the script has got as far as the client's attach, which is after its imports.
	Attached bool
	Restored bool
	// Restoring: it has begun to restore the generation's step, and is not done.
	Restoring bool
	Step      int64
}

// OptimizerSteps is what a rank's page holds: how many optimizer steps its process has finished and, where ResumeKnown,
// how many the restored state held before.
type OptimizerSteps struct {
	Generation  int64
	Local       int
	Steps       int64
	ResumedAt   int64
	ResumeKnown bool
}

// Saved is what a rank's arena holds of what became of its process's saves.
type Saved struct {
	Generation int64
	Local      int
	Saves      protocol.Saves
}

// Sealed lists the steps that a rank's arena holds now.
type Sealed struct {
	Generation int64
	Local      int
	Steps      []protocol.Point
}

// StandbyChanged reports whether a rank's standby waits for its line.
type StandbyChanged struct {
	Local int
	Ready bool
}

// PortOffered names a port that rank 0's store could listen on.
type PortOffered struct{ Port int }

// Capabilities says what the adapters provide, with notes for people.
type Capabilities struct {
	StateBytes uint64
	Storage    bool
	Grace      time.Duration
	// Unsure: storage has not answered yet.
	Unsure bool
	Notes  []string
	// Modules are what standbys import, where that is known to work; none: not known.
	Modules []string
}

// Tick lets time pass.
type Tick struct{}

// Effect is something to be done; effects are carried out in order.
type Effect interface{ effect() }

// Start starts the ranks of a generation, in standbys where they are ready; answered by Started or Exited
// for each. Sealed steps above Run.RestoreStep are discarded first. FirstRun: nothing is started; the run of the
// container's command that init began counts as the rank's.
type Start struct {
	Run      protocol.Run
	Ranks    int
	FirstRun bool
}

// End ends every process of every generation and proves them gone; answered by Gone. What handles SIGTERM is asked by it first, and has
// Within to end by itself, and where ByLauncher is set at least the launcher's shutdown timeout. What does not is not waited for.
type End struct {
	Within     time.Duration
	ByLauncher bool
}

// TakeInventory seals complete copies, discards what Abandoned names, verifies sealed slots and lists them;
// answered by Inventoried.
type TakeInventory struct{ Abandoned Abandoned }

// Levels hands the gang's common step, its level reclaimBelow and its newest durable step to the arenas.
type Levels struct {
	CommonStep, ReclaimBelow int64
	Durable                  protocol.Point
}

// Return lets the user's launcher return.
type Return struct{ Returned Returned }

// OfferPort looks for a free port; answered by PortOffered.
type OfferPort struct{}

// SetModules hands on the modules that ranks of the gang import in other pods, where none are known here.
type SetModules struct{ Modules []string }

// Standbys reports whether standbys may be warmed now. Where no generation has run here yet, nothing is in their way.
type Standbys struct{ Warm bool }

func (Start) effect()         {}
func (End) effect()           {}
func (TakeInventory) effect() {}
func (Levels) effect()        {}
func (Return) effect()        {}
func (OfferPort) effect()     {}
func (Standbys) effect()      {}
func (SetModules) effect()    {}
