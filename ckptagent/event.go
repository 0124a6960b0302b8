package ckptagent

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Event is an input of Step.
type Event interface{ apply(*machine) }

// Resumed starts an incarnation of the agent on the stored state of the previous one. SameContainer is false if the container was
// restarted, so that no old process is left.
type Resumed struct{ SameContainer bool }

// Launched reports that the user's launcher, named ID, requests Ranks ranks; it is repeated in each incarnation.
type Launched struct {
	ID          string
	Ranks       int
	Nodes       int
	NodesFlag   string
	NodesRemedy string
	// MaxRestarts is the launcher's limit of restarts; nil: none was given.
	MaxRestarts *int
}

// LaunchRefused reports that a launcher was refused.
type LaunchRefused struct{ Message string }

// Directed is a directive that was received.
type Directed struct{ Directive protocol.Directive }

// Started reports that a rank's process runs.
type Started struct {
	Generation  int64
	Local, PID  int
	FromStandby bool
}

// Exited reports that a rank's process ended or could not be started.
type Exited struct {
	Generation int64
	Local      int
	// TracebackAt is when the traceback was written; zero: none, or unknown.
	TracebackAt time.Time
	protocol.Exit
}

// Gone answers End: no process of any generation is left. Tracebacks has, by local rank, what ranks wrote before the agent ended them.
// Waited are the local ranks that handle SIGTERM and took time to end.
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

// Progress is what a rank's client reported, or what its arena holds.
type Progress struct {
	Generation int64
	Local      int
	// Attached: the script has called the client's attach, so its imports are over.
	Attached bool
	Restored bool
	// Restoring: it has begun to restore the generation's step and has not finished.
	Restoring bool
	Step      int64
	// Span and Grouped are as in protocol.Rank.
	Span    int
	Grouped bool
}

// OptimizerSteps is the content of a rank's page: the optimizer steps that its process has finished and, if ResumeKnown, the number in the
// restored state.
type OptimizerSteps struct {
	Generation  int64
	Local       int
	Steps       int64
	ResumedAt   int64
	ResumeKnown bool
}

// Saved counts the outcomes of the saves of a rank's process.
type Saved struct {
	Generation int64
	Local      int
	Saves      protocol.Saves
}

// Sealed lists the steps that a rank's arena now holds.
type Sealed struct {
	Generation int64
	Local      int
	Steps      []protocol.Point
}

// StandbyChanged reports whether a rank's standby is ready.
type StandbyChanged struct {
	Local int
	Ready bool
}

// PortOffered names a free port for rank 0's store.
type PortOffered struct{ Port int }

// Capabilities reports what the adapters provide, with notes for users.
type Capabilities struct {
	StateBytes uint64
	Storage    bool
	Grace      time.Duration
	// Unsure: storage has not answered yet.
	Unsure bool
	Notes  []string
	// Modules are what standbys import, if known to import without error; none: unknown.
	Modules []string
}

// Tick reports only that time has passed.
type Tick struct{}

// Effect is a task for the adapters; effects are carried out in order.
type Effect interface{ effect() }

// Start starts the ranks of a generation, in standbys where these are ready; answered by Started or Exited for each. Sealed steps above
// Run.RestoreStep are discarded first. FirstRun: no process is started; the run of the container's command that init began is the rank.
type Start struct {
	Run      protocol.Run
	Ranks    int
	FirstRun bool
}

// End ends every process of every generation and proves them gone; answered by Gone. Processes that handle SIGTERM get it first and have
// Within to end or, if ByLauncher is set, at least the launcher's shutdown timeout. The others are killed at once.
type End struct {
	Within     time.Duration
	ByLauncher bool
}

// TakeInventory seals complete copies, discards the steps in Abandoned, verifies sealed slots and lists them; answered by Inventoried.
type TakeInventory struct{ Abandoned Abandoned }

// Levels passes the gang's common step, reclaimBelow and newest durable step to the arenas.
type Levels struct {
	CommonStep, ReclaimBelow int64
	Durable                  protocol.Point
}

// Return makes the user's launcher return.
type Return struct{ Returned Returned }

// OfferPort looks for a free port; answered by PortOffered.
type OfferPort struct{}

// SetModules passes on the modules that ranks of the gang import in other pods, if none are known here.
type SetModules struct{ Modules []string }

// Standbys reports whether standbys may be warmed now. Before the first generation of the pod they always may.
type Standbys struct{ Warm bool }

func (Start) effect()         {}
func (End) effect()           {}
func (TakeInventory) effect() {}
func (Levels) effect()        {}
func (Return) effect()        {}
func (OfferPort) effect()     {}
func (Standbys) effect()      {}
func (SetModules) effect()    {}
