package protocol

import "time"

// Order is what an agent must do.
type Order int

const (
	// OrderNone is no order, or an unknown one.
	OrderNone Order = iota
	// OrderWait: running processes continue.
	OrderWait
	// OrderRun: run Directive.Run. An agent that already runs it only updates CommonStep and ReclaimBelow.
	OrderRun
	// OrderHalt: end every process of Directive.Generation and below, then report StateHalted with what ranks hold.
	OrderHalt
	// OrderExit: the job is over. End all processes and make the launcher return Directive.ExitCode.
	OrderExit
)

// Directive is the present order to one agent, with all levels.
type Directive struct {
	// Generation is the gang's newest. It never decreases.
	Generation int64
	Order      Order
	// Run is what to run, for OrderRun. If an earlier coordinator started the generation, it has only number and restore step, which is
	// enough for an agent that runs it. The same holds for OrderHalt: an agent that never ran that generation discards its sealed steps
	// above the restore step before it reports StateHalted, because the other pods of the gang may have sealed the same numbers again
	// meanwhile.
	Run Run
	// CommonStep is the newest step that every rank of the gang holds sealed; 0: none. ReclaimBelow is the lowest, over all ranks, of each
	// rank's newest sealed step, or one more if some rank has sealed a newer one without it: sealed steps below it, except CommonStep, are
	// not needed. Within a generation both only rise.
	CommonStep, ReclaimBelow int64
	// ExitCode is the launcher's exit code in this pod, for OrderExit.
	ExitCode int
	// Reason is a text for users.
	Reason string
	// BarrierStep: ranks that have copied a step at or above it stay in their save until they are ended or the barrier is lifted; 0: none
	// stays.
	BarrierStep int64
	// DurableStep of DurableBranch is the newest step that is complete in storage and named in the stored record; 0: none, or unknown now.
	// For a running generation it is a step on its line.
	DurableStep, DurableBranch int64
	// Copy is a step to copy from memory to storage, once; an agent that does not hold it copies nothing. The mark's generation is the
	// newest that ran, and the copy may continue after it was halted.
	Copy Mark
	// CopyNext: the next copy that ranks announce, of a step at or above it, will be ordered by Copy unless some rank lacks it. So an agent
	// may begin to write it while it computes its checksum; 0: none is expected.
	CopyNext int64
	// Manifest is a manifest that this agent must write now.
	Manifest Manifest
	// Fetch is a step to fetch from storage into memory for every local rank that does not hold it; sealed steps above it are given up. It
	// is set only while no generation runs. Run.BaseRank and Run.WorldSize are then set for it, because a pod that never ran does not know
	// its ranks.
	Fetch Mark
	// WantModules: reports must name the modules that standbys import. Modules are those that ranks of this gang imported, for an agent
	// that has no list.
	WantModules bool
	Modules     []string
	// WholeCommand: the other pods of the gang run their whole command as one rank, so this pod no longer waits for a launcher.
	WholeCommand bool
	// Launched comes with OrderHalt: other pods of the gang start their ranks with a launcher, or all did. A whole command in its first run
	// then is no rank any more and is not ended, because it may still start its launcher; a command that is no rank yet does not become
	// one.
	Launched bool
	// Launch is the number of the gang's launcher: earlier launchers have succeeded on all pods, and return 0 at once. 0: the coordinator
	// knows only one launcher per container.
	Launch int
	// HaltWithin comes with OrderHalt: ranks that handle SIGTERM may take this long to end if their launcher's shutdown timeout is shorter.
	// 0: the launcher's applies.
	HaltWithin time.Duration
	// Look is the number of the newest look that the coordinator wants of each rank; 0: none. Numbers of one gang only rise. An agent
	// answers the number that it received last, once (Report.Look).
	Look int64
	// Keep is the number of the newest look whose evidence of all ranks the agent keeps as files for users; 0: none. Numbers of one gang
	// only rise. An agent answers the number that it received last, once (Report.Kept).
	Keep int64
	// Trial is what this pod is to try before the next generation; zero: nothing. It is never set with OrderRun.
	Trial Trial
	// Authorities, in PEM, are all further authorities that may sign the coordinator's certificate, beside those in the pod's template; "":
	// unchanged. They are in the first directive of a stream, which the former authorities have authenticated.
	Authorities string
}

// Run is one pod's share of a generation; the zero Run is none.
type Run struct {
	Number    int64 `json:"number"`
	WorldSize int   `json:"worldSize"`
	// BaseRank is the rank of this pod's local rank 0; local rank i is BaseRank + i.
	BaseRank int `json:"baseRank"`
	NodeRank int `json:"nodeRank"`
	Nodes    int `json:"nodes"`
	// Slots is the gang's number of pods, if it may go on with fewer; 0: it may not.
	Slots      int    `json:"slots,omitempty"`
	MasterAddr string `json:"masterAddr"`
	MasterPort int    `json:"masterPort"`
	// RestoreStep is what every rank restores from memory; 0: the beginning, or the script's own checkpoint. Sealed steps above it are
	// given up: the agent discards them before a rank starts, and no longer reports them.
	RestoreStep int64 `json:"restoreStep"`
	// Branch is the generation's branch of training, RestoreBranch that of RestoreStep; 0: the first. Sealed steps of another branch than
	// RestoreBranch are also discarded.
	Branch        int64 `json:"branch,omitempty"`
	RestoreBranch int64 `json:"restoreBranch,omitempty"`
	// Donor is one more than the lowest rank that holds its part of the state at RestoreStep: of each part the lowest such rank gives it to
	// the ranks that hold none. 0: all hold theirs.
	Donor int `json:"donor,omitempty"`
	// RestartCount is the number of earlier generations that ended by failures (TORCHELASTIC_RESTART_COUNT).
	RestartCount int `json:"restartCount"`
}

// Restores returns the point that every rank restores.
func (r Run) Restores() Point { return Point{Branch: r.RestoreBranch, Step: r.RestoreStep} }

// Manifest marks a step as complete in storage; a zero step: none.
type Manifest struct {
	Mark
	// Ranks has one entry per rank of the world, in order.
	Ranks []ManifestRank
	// Recorded are the marks in the gang's record. After the manifest is written, the agent removes steps older than Below that are not in
	// Recorded; if Recorded is empty, it removes nothing. Without Below it removes steps older than all of Recorded.
	Recorded []Mark
	Below    Mark
}

// ManifestRank is a Manifest's entry for one rank's file.
type ManifestRank struct {
	Length   uint64
	Checksum uint32
}
