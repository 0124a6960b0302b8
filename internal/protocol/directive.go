package protocol

import "time"

// Order is what an agent must do.
type Order int

const (
	// OrderNone is no order, or an unknown one.
	OrderNone Order = iota
	// OrderWait: keep what runs.
	OrderWait
	// OrderRun: run Directive.Run. An agent that already runs it takes over CommonStep and ReclaimBelow and does nothing else.
	OrderRun
	// OrderHalt: end every process of Directive.Generation and below, then report StateHalted with what ranks hold.
	OrderHalt
	// OrderExit: the job is over. End processes and let the launcher return Directive.ExitCode.
	OrderExit
)

// Directive is all that one agent must do now.
type Directive struct {
	// Generation is the newest of this gang. It never falls.
	Generation int64
	Order      Order
	// Run is what to run, for OrderRun; to an agent that already runs it, a coordinator that did not hand it out itself says number and
	// restore step alone. So it does with OrderHalt: an agent that never ran that generation discards its sealed steps above the restore
	// step before it reports StateHalted, for the others of the gang may have sealed the same steps anew meanwhile.
	Run Run
	// CommonStep is the newest step that every rank of the gang holds sealed; 0: none is known yet. ReclaimBelow is the lowest, over all
	// ranks, of the newest sealed step, or the one after it where some rank has sealed a newer one without it: sealed steps below it other
	// than CommonStep are of no use. Within a generation both only rise.
	CommonStep, ReclaimBelow int64
	// ExitCode is what the user's launcher must return on this pod, for OrderExit.
	ExitCode int
	// Reason is for people.
	Reason string
	// BarrierStep: ranks that have copied a step at or above it stay in their save until they are ended or this is lifted; 0: none
	// stay.
	BarrierStep int64
	// DurableStep is the newest step that lies whole in storage and is named by the gang's record as it is stored; 0: none is, or that is
	// not known now. Of a generation that runs it belongs to that one's line. DurableBranch is its branch.
	DurableStep, DurableBranch int64
	// Copy is to be copied from memory to storage, once; an agent that does not hold it does nothing. The mark's generation is the newest
	// that ran, and the copy may go on after it was halted.
	Copy Mark
	// Manifest is to be written now, by this agent.
	Manifest Manifest
	// Fetch is to be brought from storage into memory for every local rank that does not hold it, and sealed steps above it are given up.
	// Only while no generation runs. Run.BaseRank and Run.WorldSize say whose files they are (a pod that never ran knows no rank); they are
	// set in addition to what the order needs.
	Fetch Mark
	// WantModules: reports are to name the modules that standbys import. Modules are those that ranks of this gang imported, for an agent
	// that knows none.
	WantModules bool
	Modules     []string
	// WholeCommand: the other pods of the gang run their whole command as one rank, so that this one waits no longer for a launcher.
	WholeCommand bool
	// Launched comes with OrderHalt: other pods of the gang start their ranks with a launcher, or all did. A whole command whose first run
	// goes on is no rank any more and is not ended, for it may start its launcher yet; one that is no rank yet does not become one.
	Launched bool
	// Launch is the number of the launcher that the gang is at: launchers before it have ended well on all pods, and return 0 at once. 0: the
	// coordinator is of a version that knows one launcher per container.
	Launch int
	// HaltWithin comes with OrderHalt: ranks that handle SIGTERM may take this long to end by themselves, if their launcher sets
	// less. 0: the launcher's time applies.
	HaltWithin time.Duration
	// Authorities, in PEM, are all that may sign the coordinator's certificate from now on, beside those that the pod was made with; "": no
	// others than before. They come with the first directive of a stream, which those before them have proven.
	Authorities string
}

// Run is one pod's share of a generation; the zero Run is none.
type Run struct {
	Number    int64 `json:"number"`
	WorldSize int   `json:"worldSize"`
	// BaseRank is the rank of this pod's local rank 0; local rank i is BaseRank + i.
	BaseRank   int    `json:"baseRank"`
	NodeRank   int    `json:"nodeRank"`
	Nodes      int    `json:"nodes"`
	MasterAddr string `json:"masterAddr"`
	MasterPort int    `json:"masterPort"`
	// RestoreStep is what every rank restores from memory; 0: start from the beginning, or the script's own checkpoint. Sealed steps above
	// it belong to a past that is given up: the agent discards them before a rank starts, and reports them no more.
	RestoreStep int64 `json:"restoreStep"`
	// Branch is the line of training that the generation is of, RestoreBranch that of RestoreStep; 0: the first. Sealed steps of another
	// branch than RestoreBranch are discarded as those above RestoreStep are.
	Branch        int64 `json:"branch,omitempty"`
	RestoreBranch int64 `json:"restoreBranch,omitempty"`
	// RestartCount is how many generations ran before because of failures (TORCHELASTIC_RESTART_COUNT).
	RestartCount int `json:"restartCount"`
}

// Restores is the point that every rank restores.
func (r Run) Restores() Point { return Point{Branch: r.RestoreBranch, Step: r.RestoreStep} }

// Manifest says that a step lies whole in storage; without a step it is none.
type Manifest struct {
	Mark
	// Ranks has one entry per rank of the world, in order.
	Ranks []ManifestRank
	// Recorded are the marks that the gang's record names. After the manifest is written, steps older than Below that are none of
	// these are removed; if none is named, nothing is removed. An agent that does not know Below, or is told none, removes what is
	// older than all of them.
	Recorded []Mark
	Below    Mark
}

// ManifestRank is what a Manifest says of one rank's file.
type ManifestRank struct {
	Length   uint64
	Checksum uint32
}
