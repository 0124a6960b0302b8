package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunStatus is the coordinator's record of generations.
type RunStatus struct {
	// Generation is the newest generation that was ever handed out.
	Generation int64 `json:"generation"`
	// RestoreStep is the step that Generation started from; 0: the beginning.
	RestoreStep int64 `json:"restoreStep,omitempty"`
	// Branch is the line of training that Generation is of, RestoreBranch that of RestoreStep; absent: the first.
	Branch        int64 `json:"branch,omitempty"`
	RestoreBranch int64 `json:"restoreBranch,omitempty"`
	// Branches say where each branch after the first began, as far as that gives up a step that anybody may still hold: a step of an
	// older branch after it is never restored again. Where the newest is above Branch, the next generation begins it.
	// +listType=atomic
	Branches []BranchStart `json:"branches,omitempty"`
	// Launch is the number of the launcher that the gang is at, of those that the pods' commands run one after another; absent: the first.
	// +optional
	Launch *RunLaunch `json:"launch,omitempty"`
	// Left are the slots whose launcher has returned 0, or whose whole command has ended with 0, while others go on.
	// +listType=atomic
	// +optional
	Left []int32 `json:"left,omitempty"`
	// Restarts counts generations that were made because of failures.
	Restarts int32 `json:"restarts"`
	// Replacements counts pods that were replaced; a restart because of that is no failure and not in Restarts.
	Replacements int32 `json:"replacements,omitempty"`
	// StartedAt is when generation 1 first ran on all ranks.
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
	// WithoutProgress counts restarts since the last progress, as elastic/progress.go defines it.
	WithoutProgress int32 `json:"withoutProgress,omitempty"`
	// Unproven counts the restarts before those, since the last progress that was more than a guess: it was guessed from how
	// long the script ran, as nobody knows where it resumed.
	Unproven int32 `json:"unproven,omitempty"`
	// BestStep is the newest step that all ranks ever held sealed or, where state is not kept in memory,
	// that all ranks ever finished: a restart that gets beyond it has made progress.
	BestStep int64 `json:"bestStep,omitempty"`
	// State is what the coordinator last decided or saw.
	State RunState `json:"state,omitempty"`
	// Progress is what the agents last told; written at most every few seconds, optimizer steps at most every 30 s.
	Progress Progress `json:"progress,omitempty"`
	// Recoveries are the newest ones, oldest first, at most 20.
	// +listType=atomic
	Recoveries []Recovery `json:"recoveries,omitempty"`
	// Durable is the newest step of which storage holds every rank's part and a manifest.
	// +optional
	Durable *StoredStep `json:"durable,omitempty"`
	// Older is the one that was Durable before: it is kept in storage as well, and serves where a file of the newer
	// one turns out to be missing or torn.
	// +optional
	Older *StoredStep `json:"older,omitempty"`
	// Kept are steps before Older that stay in storage by GangStorage.Keep and KeepEverySeconds, newest first.
	// +listType=atomic
	// +optional
	Kept []StoredStep `json:"kept,omitempty"`
	// Pinned are those of GangStorage.Pins that were recorded when the coordinator heard of them: they stay in storage until
	// they are unpinned.
	// +listType=atomic
	// +optional
	Pinned []StoredStep `json:"pinned,omitempty"`
	// PinWish is the newest GangStorage.PinWish that Pinned answers.
	PinWish int64 `json:"pinWish,omitempty"`
	// Copies are parts that drained pods left in storage for the ranks that take their place; they are of
	// use until a newer step is Durable.
	// +listType=atomic
	Copies []RankCopy `json:"copies,omitempty"`
	// Moved are the suspicions of hardware for which a pod was moved: each moves one pod of a job at most.
	// +listType=atomic
	Moved []string `json:"moved,omitempty"`
	// PendingReplacements are pods that are to be replaced and were not yet: where these are many, the first of the
	// PendingPods.
	// +listType=atomic
	PendingReplacements []Termination `json:"pendingReplacements,omitempty"`
	PendingPods         int32         `json:"pendingPods,omitempty"`
	// Verdict is set when the job was given up or has finished. That all ranks of one launcher have finished is withdrawn where a pod's
	// command runs another launcher; nothing else changes it.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Writer is the process that wrote this, and its count of writes: one that has lost its lead without
	// knowing sees from it that it must not write any more.
	Writer string `json:"writer,omitempty"`
}

// RunState is the coordinator's view of the newest generation.
// +kubebuilder:validation:Enum=Forming;Running;Halting;Finished;GivenUp
type RunState string

const (
	// RunForming: waits for agents to attach with a launcher and a port.
	RunForming RunState = "Forming"
	// RunRunning: the newest generation was handed out.
	RunRunning RunState = "Running"
	// RunHalting: a failure was seen; every process of the generation is being ended.
	RunHalting RunState = "Halting"
	// RunFinished: all ranks ended with exit code 0.
	RunFinished RunState = "Finished"
	// RunGivenUp: the verdict says why.
	RunGivenUp RunState = "GivenUp"
)

// Progress is what the agents of a gang told last.
type Progress struct {
	// Ranks is the world size; StandbysReady counts ranks with a warm standby.
	Ranks         int32 `json:"ranks,omitempty"`
	StandbysReady int32 `json:"standbysReady,omitempty"`
	// Step is the newest step that all ranks finished; SavedStep the newest that all hold sealed, since SavedAt.
	Step      int64             `json:"step,omitempty"`
	SavedStep int64             `json:"savedStep,omitempty"`
	SavedAt   *metav1.MicroTime `json:"savedAt,omitempty"`
	// LostMs is training time lost to recoveries so far: time at rest and time spent on recomputed steps. Of ResumeUnknown of them it
	// lacks the recomputed steps, because nobody knows where training resumed.
	LostMs        int64 `json:"lostMs,omitempty"`
	ResumeUnknown int32 `json:"resumeUnknown,omitempty"`
	// OptimizerSteps are those that every rank has finished in the newest generation, counted without the script's help; ResumedAt
	// is how many the state held that they started from; absent: not known.
	OptimizerSteps int64 `json:"optimizerSteps,omitempty"`
	// +optional
	ResumedAt *int64 `json:"resumedAt,omitempty"`
	// StepMicros is how long a step took before the newest failure, in microseconds.
	StepMicros int64 `json:"stepMicros,omitempty"`
	// Attached lists the slots whose agent is connected, ascending.
	Attached []int32 `json:"attached,omitempty"`
	// Notes are what agents say about things that are off or degraded.
	Notes []string `json:"notes,omitempty"`
	// Unprotected are the first of the UnprotectedPods in which something runs and no rank does.
	// +listType=atomic
	Unprotected     []UnprotectedPod `json:"unprotected,omitempty"`
	UnprotectedPods int32            `json:"unprotectedPods,omitempty"`
	// WholeCommand: each pod's one rank is its whole command, which is restarted on all pods.
	WholeCommand bool `json:"wholeCommand,omitempty"`
	// Waits says what the next generation, or the end of the one before, waits for; absent: for nothing.
	Waits string `json:"waits,omitempty"`
}

// UnprotectedPod is a pod in which no rank runs under its agent, and what runs there.
type UnprotectedPod struct {
	Slot int32  `json:"slot"`
	Pod  string `json:"pod"`
	Runs string `json:"runs"`
}

// Recovery is one repaired failure. Times are as the agents saw them; phases add up to the whole.
type Recovery struct {
	// Generation is the one that the recovery started.
	Generation int64 `json:"generation"`
	// Cause is what failed first.
	Cause Cause `json:"cause"`
	// DetectedAt is when the first agent saw the failure.
	DetectedAt metav1.MicroTime `json:"detectedAt"`
	// Decide: failure seen to halt order received by the last agent. Stop: to the last process gone. Start: to the last rank running or, where
	// scripts use the client, attached, so that imports are over. Restore: to the last rank's state restored. FirstStep: to the last rank's
	// first step. All in milliseconds; absent while not reached.
	DecideMs    *int64 `json:"decideMs,omitempty"`
	StopMs      *int64 `json:"stopMs,omitempty"`
	StartMs     *int64 `json:"startMs,omitempty"`
	RestoreMs   *int64 `json:"restoreMs,omitempty"`
	FirstStepMs *int64 `json:"firstStepMs,omitempty"`
	// RestoreStep is the step that ranks were told to restore; 0: none. StepsRecomputed is how many finished steps were done again;
	// absent: not known.
	RestoreStep int64 `json:"restoreStep"`
	// +optional
	StepsRecomputed *int64 `json:"stepsRecomputed,omitempty"`
	// EndedAfter is how many optimizer steps a rank had finished at most in the generation that failed, ReachedStep the step up to
	// which all ranks had come, ResumedAt the step from which they went on; absent: not known. StepsRecomputed counts only where
	// both are.
	EndedAfter int64 `json:"endedAfter,omitempty"`
	// +optional
	ReachedStep *int64 `json:"reachedStep,omitempty"`
	// +optional
	ResumedAt *int64 `json:"resumedAt,omitempty"`
	// Closed: what it cost is in progress.lostMs, and no event Recovered follows.
	Closed bool `json:"closed,omitempty"`
	// Standbys counts ranks that continued in a warm standby; Ranks counts all.
	Standbys int32 `json:"standbys"`
	Ranks    int32 `json:"ranks"`
	// Drain: from the decision to replace a pod to its state copied out; it comes before Stop and holds
	// Decide. Replace: from the last process gone to the last new pod's agent attached with a launcher.
	// Fetch: from there to the state brought from storage. Absent where no pod was replaced.
	DrainMs   *int64 `json:"drainMs,omitempty"`
	ReplaceMs *int64 `json:"replaceMs,omitempty"`
	FetchMs   *int64 `json:"fetchMs,omitempty"`
	// Waited is the pod whose ranks took longest to end by themselves, within Stop: they handle SIGTERM. Absent: none was waited for.
	// +optional
	Waited *Waited `json:"waited,omitempty"`
	// Replaced are the pods that this recovery replaced: where these are many, the first of the ReplacedPods.
	// +listType=atomic
	Replaced     []Replacement `json:"replaced,omitempty"`
	ReplacedPods int32         `json:"replacedPods,omitempty"`
}

// Waited says for how many ranks of a slot was waited until they had answered SIGTERM, and how long.
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

// RankCopy is one rank's part of a step in storage, or that of several ranks in a row.
type RankCopy struct {
	Rank int32 `json:"rank"`
	// Ranks counts those in a row, from Rank on; absent: one.
	Ranks      int32 `json:"ranks,omitempty"`
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
	Branch     int64 `json:"branch,omitempty"`
}

// RunLaunch is which of a command's launchers a gang is at.
type RunLaunch struct {
	// Number counts launchers from 1.
	Number int32 `json:"number"`
	// After is the newest generation of the launchers before: all later ones are of this launcher.
	After int64 `json:"after,omitempty"`
	// Restarts are those of the launchers before.
	Restarts int32 `json:"restarts,omitempty"`
	// Kept are steps that stay in storage and from which no generation begins, newest first: of this launcher the newest that was given up
	// because ranks failed to restore it (its generation is above After), and the newest of each launcher before.
	// +listType=atomic
	// +optional
	Kept []StoredStep `json:"kept,omitempty"`
}

// BranchStart says that a branch began after a step of an older one.
type BranchStart struct {
	Branch int64 `json:"branch"`
	From   int64 `json:"from"`
}

// Termination says that a pod is to be replaced, and why.
type Termination struct {
	Slot   int32  `json:"slot"`
	Pod    string `json:"pod"`
	PodUID string `json:"podUID"`
	Node   string `json:"node,omitempty"`
	// Cause is the node's cause, or CauseDeleted.
	Cause   string           `json:"cause"`
	Message string           `json:"message,omitempty"`
	At      metav1.MicroTime `json:"at"`
	// Deadline is how long the pod's state may be waited for.
	// +optional
	Deadline *metav1.MicroTime `json:"deadline,omitempty"`
	// Dead: nothing there can be asked; the pod is fenced.
	Dead bool `json:"dead,omitempty"`
}

// CauseDeleted: somebody deletes or evicts the pod (kubectl drain, a spot notice, a person).
const CauseDeleted = "PodDeleted"

// CauseNodeShutdown and CauseEvicted: the node's kubelet ends the pod, and nobody deletes it: the node is shut down gracefully, or short
// of memory, disk or process numbers.
const (
	CauseNodeShutdown = "NodeShutdown"
	CauseEvicted      = "Evicted"
)

// CauseJobSuspended: the Job is suspended, so that its pods go and no others come for now.
const CauseJobSuspended = "JobSuspended"

// CauseHardwareSuspected: the pod first at fault tries another node, because its failure may be its node's.
const CauseHardwareSuspected = "HardwareSuspected"

// CauseAgentUnreachable: a pod's agent was not heard while the gang was to halt.
const CauseAgentUnreachable = "AgentUnreachable"

// CauseHaltTimeout: a pod's agent was heard, and what it runs did not end while the gang was to halt.
const CauseHaltTimeout = "HaltTimeout"

// ControllerCauses are the causes that controllers write; all others are the node daemon's, which its catalogue lists.
var ControllerCauses = []string{
	CauseNodeUnreachable,
	CauseNodeGone,
	CauseDeleted,
	CauseAgentUnreachable,
	CauseHaltTimeout,
	CauseHardwareSuspected,
	CauseNodeShutdown,
	CauseEvicted,
	CauseJobSuspended,
}

// Replacement is a pod that was replaced: the termination, and what came of it. Times are the API server's and
// the controller's; a time that is absent was not reached.
type Replacement struct {
	Termination `json:",inline"`
	// ReleasedAt is when it was taken out of its Job.
	// +optional
	ReleasedAt *metav1.MicroTime `json:"releasedAt,omitempty"`
	// By is the new pod, NewNode where it is, AttachedAt when its agent was first heard.
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
	// ExitCode as a shell shows it.
	ExitCode int32  `json:"exitCode,omitempty"`
	Message  string `json:"message,omitempty"`
	// Suspect is the hardware fault that the failure may be: UncorrectableError, NCCLRemoteError, NCCLSystemError, NCCLWatchdog,
	// IllegalInstruction, BusError; absent: none is suspected.
	Suspect string `json:"suspect,omitempty"`
	// Cascade counts further ranks that ended because of this one.
	Cascade int32 `json:"cascade,omitempty"`
}

// Verdict ends a gang.
type Verdict struct {
	// Reason is ReasonFinished, ReasonSameFailureTwice, ReasonNoProgress, ReasonMaxRestarts, ReasonMemberEnded or ReasonRefused.
	Reason   string           `json:"reason"`
	ExitCode int32            `json:"exitCode"`
	Cause    *Cause           `json:"cause,omitempty"`
	At       metav1.MicroTime `json:"at"`
}
