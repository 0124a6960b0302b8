package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/elastic/waiting"
)

// Names that events and the record use, from the packages that define them.
type (
	Slot        = members.Slot
	Pod         = members.Pod
	Termination = replacements.Termination
	Replacement = replacements.Replacement
	Budget      = account.Budget
	Recovery    = account.Recovery
	StoredStep  = ledger.StoredStep
	RankCopy    = restore.Part
	Storage     = ledger.Storage
	Retention   = ledger.Retention
)

// Settings are a job's settings, as far as the coordinator applies them.
type Settings struct {
	Storage
	Supervision
	quorum.Limits
}

// Events returns the settings that may change, as events.
func (s Settings) Events() []Event {
	return []Event{Limit{s.Limits}, Retain{s.Retention}, Supervise{s.Supervision}}
}

// Phase is the state of a gang's run.
type Phase string

const (
	// Forming waits until every slot holds an agent that can start the next generation.
	Forming Phase = "Forming"
	// Running: agents have received the newest generation.
	Running Phase = "Running"
	// Halting: a failure ended the newest generation, and its processes are being ended.
	Halting Phase = "Halting"
	// Finished is final: all ranks ended with exit code 0.
	Finished Phase = "Finished"
	// GivenUp is final: the verdict has the reason.
	GivenUp Phase = "GivenUp"
)

// StepUnknown is Record.RestoreStep if the store lost the record of a generation that agents have run.
const StepUnknown = generation.StepUnknown

// Record is all that must outlive a coordinator: a Gang's status.run.
type Record struct {
	Generation  int64
	RestoreStep int64
	// Branch is Generation's branch of training, RestoreBranch that of RestoreStep. Branches is the line itself; if it has a newer
	// branch than Generation's, the next generation begins that one.
	Branch, RestoreBranch int64
	Branches              restore.Line
	// Launch is the present launcher, Left the slots whose pods are no members of further generations of it.
	Launch Launch
	Left   []Slot
	// Out are the slots that take no part in Generation.
	Out []Slot
	// Worlds are the numbers of ranks of earlier generations, where they differ.
	Worlds []restore.World
	Budget
	BestStep   int64
	StartedAt  time.Time
	Phase      Phase
	Progress   Progress
	Recoveries []Recovery // oldest first
	Verdict    *Verdict
	// Replacements is the number of replaced pods.
	Replacements int
	// Durable is the newest step that is complete in storage, Older the one recorded before it; nil: none. Copies are parts of steps
	// that drained pods left there.
	Durable *StoredStep
	Older   *StoredStep
	Copies  []RankCopy
	// Kept are steps before Older that stay in storage, newest first.
	Kept []StoredStep
	// Pinned are steps that stay in storage because a user pinned them. They are restored only on a user's request.
	Pinned []StoredStep
	// PinWish is the newest Retention.PinWish that Pinned answers.
	PinWish int64
	// Moved are the suspects for which a pod was moved.
	Moved []cause.Suspect
	// Check is the newest node check, CheckWish the newest Supervision.CheckWish that was taken.
	Check     Check
	CheckWish int64
	// Sizes is what a gang with a minimum has learned about numbers of pods.
	Sizes Sizes
	// PendingReplacements are pods that must be replaced and are not yet, Suspended those that terminate because their Job is
	// suspended (suspend.go). In the stored record both list the first pods only (bounds.go), and PendingPods counts all.
	PendingReplacements []Termination
	Suspended           []Termination
	PendingPods         int
}

// Progress is what users see of a gang beside its recoveries.
type Progress struct {
	members.Seen
	account.Figures
	// Waits is what the next generation waits for; "": nothing.
	Waits string
	// Fewer is why the newest generation has fewer pods than the gang has slots; "": it has all.
	Fewer string
	// LongestSilence is the longest silence of the launcher's ranks after which they moved on by themselves.
	LongestSilence time.Duration
	// Standstill is why the newest generation makes no step; the zero value: it does, or is not known to make none.
	Standstill Standstill
}

// Standstill is the verdict on a gang that makes no step, since when it makes none, and who waits for whom.
type Standstill struct {
	Verdict waiting.Kind
	Since   time.Time
	// Seen is how much of the silence passed while the coordinator had reports of all agents.
	Seen time.Duration
	Text string
	// At is how far the gang was: the silence goes on while it is no further.
	At Position
}

// Position is how far a generation is. Steps is a sum of the steps that its ranks report, Started how many phases of their start they have
// reached. Both only rise.
type Position struct{ Steps, Started int64 }

// NotReached marks a phase of a Recovery that is not reached (yet).
const NotReached = account.NotReached

// Reason is why a gang ended.
type Reason string

// The reasons of a Verdict, which are also reasons of the Gang's conditions.
const (
	ReasonFinished         Reason = "Finished"
	ReasonSameFailureTwice Reason = "SameFailureTwice"
	ReasonNoProgress       Reason = "NoProgress"
	ReasonRefused          Reason = "LauncherRefused"
	ReasonMemberEnded      Reason = "MemberEnded"
	ReasonMaxRestarts      Reason = "MaxRestarts"
)

// Verdict ends a gang; it never changes, except that Finished is withdrawn if a later launcher starts (launch.go).
type Verdict struct {
	Reason   Reason
	ExitCode int
	Cause    *cause.Cause
	At       time.Time
}

// Terminations returns the pods that must terminate, each once.
func (r *Record) Terminations() []Termination {
	return replacements.Merge(r.PendingReplacements, r.Suspended)
}
