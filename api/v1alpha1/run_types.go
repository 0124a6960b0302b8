package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunStatus is the coordinator's record of a gang: what must outlive the coordinator. Only the coordinator writes it.
type RunStatus struct {
	// Generation is the newest generation that was started.
	Generation int64 `json:"generation"`
	// RestoreStep is the step from which Generation started; 0: the beginning.
	RestoreStep int64 `json:"restoreStep,omitempty"`
	// Branch is the branch of training of Generation, RestoreBranch that of RestoreStep; absent: the first branch.
	Branch        int64 `json:"branch,omitempty"`
	RestoreBranch int64 `json:"restoreBranch,omitempty"`
	// Branches are the starts of the branches after the first, unless no rank or storage can hold a step that they exclude. A step of an
	// older branch after such a start is never restored. If the newest is above Branch, the next generation begins it.
	// +listType=atomic
	Branches []BranchStart `json:"branches,omitempty"`
	// Launch is the present launcher of the pods' commands, which run several in turn; absent: the first.
	// +optional
	Launch *RunLaunch `json:"launch,omitempty"`
	// Left are the slots whose launcher has returned 0, or whose whole command has ended with 0, while other slots still run.
	// +listType=atomic
	// +optional
	Left []int32 `json:"left,omitempty"`
	// Out are the slots that take no part in Generation, which runs with fewer pods.
	// +listType=atomic
	// +optional
	Out []int32 `json:"out,omitempty"`
	// Worlds are the numbers of ranks of earlier generations, where they differ: a step in storage is for the number of its generation.
	// +listType=atomic
	// +optional
	Worlds []RunWorld `json:"worlds,omitempty"`
	// Sizes is what was learned about numbers of pods below all; absent: nothing.
	// +optional
	Sizes *RunSizes `json:"sizes,omitempty"`
	// Restarts is the number of generations that were started because of failures.
	Restarts int32 `json:"restarts"`
	// Replacements is the number of replaced pods. A restart for a replacement is not in Restarts.
	Replacements int32 `json:"replacements,omitempty"`
	// StartedAt is when generation 1 first ran on all ranks.
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
	// WithoutProgress is the number of restarts since the last progress, as elastic/account/progress.go defines it.
	WithoutProgress int32 `json:"withoutProgress,omitempty"`
	// Hangs is the number of restarts of ranks that stood still since the last progress. They are not in Restarts.
	Hangs int32 `json:"hangs,omitempty"`
	// Unproven is the number of earlier restarts since the last certain progress. Progress in between was guessed from how long the script
	// ran, because its resume point is unknown.
	Unproven int32 `json:"unproven,omitempty"`
	// BestStep is the newest step that all ranks ever held sealed or, where state is not kept in memory, that all ranks ever finished. A
	// newer step is progress.
	BestStep int64 `json:"bestStep,omitempty"`
	// State is the state of the newest generation.
	State RunState `json:"state,omitempty"`
	// Progress is from the agents' newest reports. It is written every few seconds at most, optimizer steps every 30 s at most.
	Progress Progress `json:"progress,omitempty"`
	// Recoveries are the newest recoveries, oldest first, at most 20.
	// +listType=atomic
	Recoveries []Recovery `json:"recoveries,omitempty"`
	// Durable is the newest step of which storage has every rank's part and a manifest.
	// +optional
	Durable *StoredStep `json:"durable,omitempty"`
	// Older is the step that was Durable before. It stays in storage and is restored if a file of Durable is missing or damaged.
	// +optional
	Older *StoredStep `json:"older,omitempty"`
	// Kept are steps before Older that stay in storage by GangStorage.Keep and KeepEverySeconds, newest first.
	// +listType=atomic
	// +optional
	Kept []StoredStep `json:"kept,omitempty"`
	// Pinned are the steps of GangStorage.Pins that were on record when the coordinator received the pins. They stay in storage until they
	// are unpinned.
	// +listType=atomic
	// +optional
	Pinned []StoredStep `json:"pinned,omitempty"`
	// PinWish is the GangStorage.PinWish that Pinned answers.
	PinWish int64 `json:"pinWish,omitempty"`
	// Copies are parts that drained pods left in storage for the ranks that replace theirs. They are dropped once a newer step is Durable.
	// +listType=atomic
	Copies []RankCopy `json:"copies,omitempty"`
	// Moved are the suspects for which a pod was moved to another node: each moves at most one pod of a job.
	// +listType=atomic
	Moved []string `json:"moved,omitempty"`
	// CheckWish is the newest GangSpec.CheckWish that the coordinator has taken.
	CheckWish int64 `json:"checkWish,omitempty"`
	// NodeCheck is the newest check of the pods before a generation; absent: there was none.
	// +optional
	NodeCheck *NodeCheck `json:"nodeCheck,omitempty"`
	// PendingReplacements are the pods that must be replaced and still hold their slots: the first of them, if not all fit. PendingPods is
	// the number of all.
	// +listType=atomic
	PendingReplacements []Termination `json:"pendingReplacements,omitempty"`
	PendingPods         int32         `json:"pendingPods,omitempty"`
	// Verdict is set when the job was given up or has finished. The finish of one launcher is withdrawn if a pod's command starts another
	// launcher; nothing else changes the verdict.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Writer is the process that wrote this status and its count of writes. A coordinator that has lost its leader lease unnoticed finds
	// another writer here and stops writing.
	Writer string `json:"writer,omitempty"`
}

// RunState is the coordinator's view of the newest generation.
// +kubebuilder:validation:Enum=Forming;Running;Halting;Finished;GivenUp
type RunState string

const (
	// RunForming: the coordinator waits for agents to attach with a launcher and a port.
	RunForming RunState = "Forming"
	// RunRunning: the newest generation was started.
	RunRunning RunState = "Running"
	// RunHalting: the agents are ending every process of the generation.
	RunHalting RunState = "Halting"
	// RunFinished: all ranks ended with exit code 0.
	RunFinished RunState = "Finished"
	// RunGivenUp: the gang is not restarted again; Verdict has the reason.
	RunGivenUp RunState = "GivenUp"
)

// Progress is what the agents of a gang reported last.
type Progress struct {
	// Ranks is the world size, StandbysReady the number of ranks with a warm standby.
	Ranks         int32 `json:"ranks,omitempty"`
	StandbysReady int32 `json:"standbysReady,omitempty"`
	// Step is the newest step that all ranks finished, SavedStep the newest that all ranks hold sealed, SavedAt when they did.
	Step      int64             `json:"step,omitempty"`
	SavedStep int64             `json:"savedStep,omitempty"`
	SavedAt   *metav1.MicroTime `json:"savedAt,omitempty"`
	// LostMs is the training time lost to recoveries and standstills: time at rest and time spent on recomputed steps. ResumeUnknown is the
	// number of recoveries whose recomputed steps it lacks because their resume point is unknown.
	LostMs        int64 `json:"lostMs,omitempty"`
	ResumeUnknown int32 `json:"resumeUnknown,omitempty"`
	// OptimizerSteps is the number that every rank has finished in the newest generation, counted without the script's help. ResumedAt is
	// the number in the state from which they started; absent: unknown.
	OptimizerSteps int64 `json:"optimizerSteps,omitempty"`
	// +optional
	ResumedAt *int64 `json:"resumedAt,omitempty"`
	// StepMicros is the duration of a step before the newest failure, in microseconds.
	StepMicros int64 `json:"stepMicros,omitempty"`
	// Attached lists the slots whose agent is connected, ascending.
	Attached []int32 `json:"attached,omitempty"`
	// Notes are the agents' notes on what is off or degraded.
	Notes []string `json:"notes,omitempty"`
	// Unprotected are the first pods in which processes run but no rank; UnprotectedPods is the number of all.
	// +listType=atomic
	Unprotected     []UnprotectedPod `json:"unprotected,omitempty"`
	UnprotectedPods int32            `json:"unprotectedPods,omitempty"`
	// WholeCommand: the one rank of each pod is its whole command, which is restarted on all pods.
	WholeCommand bool `json:"wholeCommand,omitempty"`
	// Waits is what the next generation, or the end of the previous one, waits for; absent: nothing.
	Waits string `json:"waits,omitempty"`
	// Fewer is why the newest generation runs with fewer pods than the gang has; absent: it runs with all.
	Fewer string `json:"fewer,omitempty"`
	// LongestSilenceMs is the longest time without a step after which the ranks moved on by themselves, if it was long enough for a look at
	// them. Ranks that make no step are ended only after three times that time.
	LongestSilenceMs int64 `json:"longestSilenceMs,omitempty"`
	// Standstill is the newest verdict on a gang that makes no step; absent: it makes steps, or there is no verdict yet.
	// +optional
	Standstill *Standstill `json:"standstill,omitempty"`
}

// RunSizes is what the coordinator of a gang with MinPods has learned about numbers of pods.
type RunSizes struct {
	// Struck are the numbers with which the script cannot run, oldest first, at most 8. No generation has one of them until
	// GangSpec.RetrySizes is above Retried, or the commands of the pods run their next launcher. After eight only all pods are enough.
	// +listType=atomic
	// +optional
	Struck []StruckSize `json:"struck,omitempty"`
	// Retried is the newest GangSpec.RetrySizes that cleared Struck.
	Retried int64 `json:"retried,omitempty"`
	// AbsentMs is the time of all slots together in which they took no part in the newest generation, from StartedAt of the run to Since,
	// when the present one began; absent: it has all slots. GangStatus.CapacityPercent follows from it.
	AbsentMs int64             `json:"absentMs,omitempty"`
	Since    *metav1.MicroTime `json:"since,omitempty"`
	// StartMs is the median time of pods from a node to an agent that reports; absent: unknown.
	StartMs int64 `json:"startMs,omitempty"`
	// GrownAt is when ranks were last ended at one step for pods that came, SnoozeMs the time after it in which they are not ended again,
	// and Came are the slots of these pods.
	GrownAt  *metav1.MicroTime `json:"grownAt,omitempty"`
	SnoozeMs int64             `json:"snoozeMs,omitempty"`
	// +listType=atomic
	// +optional
	Came []int32 `json:"came,omitempty"`
}

// StruckSize is a number of pods with which the script raised an exception before any step.
type StruckSize struct {
	Pods       int32 `json:"pods"`
	Generation int64 `json:"generation"`
	// Message is the exception.
	Message string `json:"message,omitempty"`
}

// RunWorld is the number of ranks of all generations up to one, from the RunWorld before it.
type RunWorld struct {
	Until int64 `json:"until"`
	Ranks int32 `json:"ranks"`
}

// Standstill is what looks at the ranks of a gang that makes no step showed.
type Standstill struct {
	// Verdict is ReasonBusy, ReasonUnexplained, ReasonStopped, or the Cause of the restart that may follow.
	Verdict string `json:"verdict"`
	// Since is the time of the last step, or of the last sign of life of ranks that start.
	Since metav1.MicroTime `json:"since"`
	// SeenMs is how much of the time since then passed while the agents of all pods were connected: only that ends ranks.
	SeenMs int64 `json:"seenMs,omitempty"`
	// Message names the ranks that stand still or move, and what the others wait for.
	Message string `json:"message,omitempty"`
	// Steps is a sum of the steps that the ranks reported, and Started the number of phases of their start that they have reached. While
	// both are unchanged, a coordinator that succeeds another one continues the silence.
	Steps   int64 `json:"steps,omitempty"`
	Started int64 `json:"started,omitempty"`
}

// UnprotectedPod is a pod in which no rank runs under its agent, and the command that runs there.
type UnprotectedPod struct {
	Slot int32  `json:"slot"`
	Pod  string `json:"pod"`
	Runs string `json:"runs"`
}

// Recovery is one repaired failure. Times are from the agents' clocks. The phases add up to the whole duration.
type Recovery struct {
	// Generation is the generation that the recovery started.
	Generation int64 `json:"generation"`
	// Cause is what failed first.
	Cause Cause `json:"cause"`
	// DetectedAt is when the first agent saw the failure.
	DetectedAt metav1.MicroTime `json:"detectedAt"`
	// Each phase ends with the last agent or rank. Decide: from the failure to the halt order received. Stop: to the last process gone.
	// Start: to the last rank running or, where scripts use the client, attached, so that imports are over. Restore: to the last rank's
	// state restored. FirstStep: to the last rank's first step. In milliseconds; absent: not reached.
	DecideMs    *int64 `json:"decideMs,omitempty"`
	StopMs      *int64 `json:"stopMs,omitempty"`
	StartMs     *int64 `json:"startMs,omitempty"`
	RestoreMs   *int64 `json:"restoreMs,omitempty"`
	FirstStepMs *int64 `json:"firstStepMs,omitempty"`
	// RestoreStep is the step that ranks had to restore; 0: none. StepsRecomputed is the number of finished steps that were done again;
	// absent: unknown.
	RestoreStep int64 `json:"restoreStep"`
	// +optional
	StepsRecomputed *int64 `json:"stepsRecomputed,omitempty"`
	// EndedAfter is the most optimizer steps that a rank had finished in the failed generation. ReachedStep is the step that all ranks had
	// reached, ResumedAt the resume point; absent: unknown. StepsRecomputed is known only where both are.
	EndedAfter int64 `json:"endedAfter,omitempty"`
	// +optional
	ReachedStep *int64 `json:"reachedStep,omitempty"`
	// +optional
	ResumedAt *int64 `json:"resumedAt,omitempty"`
	// Closed: its cost is in progress.lostMs, and no event Recovered follows.
	Closed bool `json:"closed,omitempty"`
	// Standbys is the number of ranks that continued in a warm standby, Ranks the number of all.
	Standbys int32 `json:"standbys"`
	Ranks    int32 `json:"ranks"`
	// RanksBefore is the number of ranks of the failed generation, if a gang with MinPods went on with another one; absent: it did not.
	RanksBefore int32 `json:"ranksBefore,omitempty"`
	// Detect: from the last step of ranks that stood still to the order to end them; DetectedAt is then the time of that step. Drain: from the
	// decision to replace a pod to its state copied; it precedes Stop and includes Decide. Replace: from the last process
	// gone to the agent of the last new pod attached with a launcher. Fetch: from there to the state fetched from storage. In milliseconds;
	// absent: there was no such phase, or its beginning is unknown.
	DetectMs  *int64 `json:"detectMs,omitempty"`
	DrainMs   *int64 `json:"drainMs,omitempty"`
	ReplaceMs *int64 `json:"replaceMs,omitempty"`
	FetchMs   *int64 `json:"fetchMs,omitempty"`
	// CheckMs is the time of the node check after Fetch, with the replacement of pods that it named; absent: there was none.
	CheckMs *int64 `json:"checkMs,omitempty"`
	// Waited is the pod whose ranks took longest to end after SIGTERM, within Stop; absent: all ended at once.
	// +optional
	Waited *Waited `json:"waited,omitempty"`
	// Replaced are the pods that this recovery replaced: the first of them, if not all fit. ReplacedPods is the number of all.
	// +listType=atomic
	Replaced     []Replacement `json:"replaced,omitempty"`
	ReplacedPods int32         `json:"replacedPods,omitempty"`
}

// NodeCheck is a check of the pods, alone and in pairs, while no rank runs.
type NodeCheck struct {
	// Generation is the one that it precedes.
	Generation int64 `json:"generation"`
	// StartedAt is when it began, EndedAt when the generation could begin; absent: it is under way.
	StartedAt metav1.MicroTime `json:"startedAt"`
	// +optional
	EndedAt *metav1.MicroTime `json:"endedAt,omitempty"`
	// Result is one of:
	//
	//   - Ordered: the check is due and has not begun; UnderWay.
	//   - Passed: all pods passed; Skipped: each node passed a check within 24 h.
	//   - Replaced: pods were named and replaced, and all passed then.
	//   - NoHealthyNode: a pod computes wrong results and cannot be replaced, so that the gang waits.
	//   - Withdrawn: the job no longer wants it, and the generation began.
	//   - Inconclusive: answers are missing, or speak against no single pod.
	Result string `json:"result"`
	// Replaced is the number of pods that it named, Message what was found, with pods and nodes.
	Replaced int32  `json:"replaced,omitempty"`
	Message  string `json:"message,omitempty"`
	// Decides: the gang ends with SameFailureTwice, unless the check has a pod replaced.
	Decides bool `json:"decides,omitempty"`
	// Named are the first pods that the check had replaced.
	// +listType=atomic
	Named []NamedPod `json:"named,omitempty"`
	// KeepsSlow: slow pods are not replaced any more, because one found no other node.
	KeepsSlow bool `json:"keepsSlow,omitempty"`
	// Wish is the request that it answers; absent: none.
	Wish int64 `json:"wish,omitempty"`
	// Rounds is the number of rounds of trials, Speeds are those that were measured, by model.
	Rounds int32 `json:"rounds,omitempty"`
	// +listType=atomic
	Speeds []ModelSpeeds `json:"speeds,omitempty"`
}

// ModelSpeeds are the speeds of the pods of one model in a node check: the slowest and the median, in operations per second alone, and in
// bytes per second with a partner of the same model; absent: not measured.
type ModelSpeeds struct {
	Model       string `json:"model"`
	Pods        int32  `json:"pods"`
	Alone       int64  `json:"alone,omitempty"`
	AloneMedian int64  `json:"aloneMedian,omitempty"`
	Pair        int64  `json:"pair,omitempty"`
	PairMedian  int64  `json:"pairMedian,omitempty"`
}

// NamedPod is a pod that a node check had replaced, and why.
type NamedPod struct {
	Slot    int32  `json:"slot"`
	Pod     string `json:"pod"`
	Node    string `json:"node,omitempty"`
	Cause   string `json:"cause"`
	Message string `json:"message,omitempty"`
}

// Waited is the number of ranks of a slot that handled SIGTERM, and how long they took to end.
type Waited struct {
	Slot  int32 `json:"slot"`
	Ranks int32 `json:"ranks"`
	Ms    int64 `json:"ms"`
}

// StoredStep names a step in storage.
type StoredStep struct {
	Step       int64            `json:"step"`
	Generation int64            `json:"generation"`
	Branch     int64            `json:"branch,omitempty"`
	At         metav1.MicroTime `json:"at"`
}

// RankCopy is the part of a step in storage of one rank, or of several consecutive ranks.
type RankCopy struct {
	Rank int32 `json:"rank"`
	// Ranks is the number of consecutive ranks, from Rank on; absent: one.
	Ranks      int32 `json:"ranks,omitempty"`
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
	Branch     int64 `json:"branch,omitempty"`
}

// RunLaunch is the launcher, of those that the pods' commands run in turn, that a gang is at.
type RunLaunch struct {
	// Number counts launchers from 1.
	Number int32 `json:"number"`
	// After is the newest generation of the previous launchers: all later ones belong to this launcher.
	After int64 `json:"after,omitempty"`
	// Restarts is the number of restarts of the previous launchers.
	Restarts int32 `json:"restarts,omitempty"`
	// Kept are steps that stay in storage and from which no generation starts, newest first: the newest step of this launcher that was
	// given up because ranks failed to restore it (its generation is above After), and the newest of each launcher before.
	// +listType=atomic
	// +optional
	Kept []StoredStep `json:"kept,omitempty"`
}

// BranchStart is a branch and the step of an older branch after which it began.
type BranchStart struct {
	Branch int64 `json:"branch"`
	From   int64 `json:"from"`
}

// Termination is a pod that must be replaced, and why.
type Termination struct {
	Slot   int32  `json:"slot"`
	Pod    string `json:"pod"`
	PodUID string `json:"podUID"`
	Node   string `json:"node,omitempty"`
	// Cause is the node's cause, or CauseDeleted.
	Cause   string           `json:"cause"`
	Message string           `json:"message,omitempty"`
	At      metav1.MicroTime `json:"at"`
	// Deadline is until when the coordinator may wait for the pod's state.
	// +optional
	Deadline *metav1.MicroTime `json:"deadline,omitempty"`
	// Dead: the pod's processes cannot be reached; the pod is fenced.
	Dead bool `json:"dead,omitempty"`
}

// CauseDeleted: the pod is being deleted or evicted through the API server (kubectl drain, a spot notice, a user).
const CauseDeleted = "PodDeleted"

// CauseNodeShutdown and CauseEvicted: the node's kubelet ends the pod without a deletion: the node shuts down gracefully, or is short of
// memory, disk or process numbers.
const (
	CauseNodeShutdown = "NodeShutdown"
	CauseEvicted      = "Evicted"
)

// CauseJobSuspended: the Job is suspended, so its pods are deleted and not re-created for now.
const CauseJobSuspended = "JobSuspended"

// CauseHardwareSuspected: the pod that failed first is moved to another node, because its hardware may be at fault.
const CauseHardwareSuspected = "HardwareSuspected"

// CauseNodeCheckFailed: a node check named the pod, which is moved to another node.
const CauseNodeCheckFailed = "NodeCheckFailed"

// CauseNodeSlow: a node check found the pod slow, which is moved to another node.
const CauseNodeSlow = "NodeSlow"

// CauseAgentUnreachable: reports from a pod's agent stopped while the gang was to halt.
const CauseAgentUnreachable = "AgentUnreachable"

// CauseHaltTimeout: a pod's agent reported, but its processes did not end while the gang was to halt.
const CauseHaltTimeout = "HaltTimeout"

// ControllerCauses are the causes that controllers write. All others are the node daemon's, listed in its catalogue.
var ControllerCauses = []string{
	CauseNodeUnreachable,
	CauseNodeGone,
	CauseEvictedByHand,
	CauseNodeSuspected,
	CauseDeleted,
	CauseAgentUnreachable,
	CauseHaltTimeout,
	CauseHardwareSuspected,
	CauseNodeCheckFailed,
	CauseNodeSlow,
	CauseNodeShutdown,
	CauseEvicted,
	CauseJobSuspended,
}

// Replacement is a replaced pod: its termination and its successor. Times are the API server's and the controller's; absent: not reached.
type Replacement struct {
	Termination `json:",inline"`
	// ReleasedAt is when the pod was taken out of its Job.
	// +optional
	ReleasedAt *metav1.MicroTime `json:"releasedAt,omitempty"`
	// By is the new pod, NewNode its node, AttachedAt when its agent first reported.
	By         string            `json:"by,omitempty"`
	NewNode    string            `json:"newNode,omitempty"`
	AttachedAt *metav1.MicroTime `json:"attachedAt,omitempty"`
}

// Cause is what failed first, with its evidence.
type Cause struct {
	// Code is the cause's name, such as RankKilled, RankFailed, PortConflict, PodLost, RanksLost.
	Code string `json:"code"`
	Rank int32  `json:"rank"`
	Slot int32  `json:"slot"`
	// ExitCode is the exit code as a shell reports it: 128 plus the number of a signal that ended the rank.
	ExitCode int32  `json:"exitCode,omitempty"`
	Message  string `json:"message,omitempty"`
	// Suspect is the hardware fault that may have caused the failure: UncorrectableError, NCCLRemoteError, NCCLSystemError, NCCLWatchdog,
	// IllegalInstruction, BusError, StateTransfer, PodLacks, Hang; absent: none.
	Suspect string `json:"suspect,omitempty"`
	// Cascade is the number of further ranks that ended because of this one.
	Cascade int32 `json:"cascade,omitempty"`
}

// Verdict is how a gang ended.
type Verdict struct {
	// Reason is ReasonFinished, ReasonSameFailureTwice, ReasonNoProgress, ReasonMaxRestarts, ReasonMemberEnded or ReasonRefused.
	Reason   string           `json:"reason"`
	ExitCode int32            `json:"exitCode"`
	Cause    *Cause           `json:"cause,omitempty"`
	At       metav1.MicroTime `json:"at"`
}
