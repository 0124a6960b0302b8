package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/elastic/restore"
)

// What events and the record name, of the packages that keep it.
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

// Phase is what a gang does now.
type Phase string

const (
	// Forming waits until every slot holds an agent that can start the next generation.
	Forming Phase = "Forming"
	// Running has handed the newest generation out.
	Running Phase = "Running"
	// Halting has seen a failure and ends every process of the newest generation.
	Halting Phase = "Halting"
	// Finished is final: all ranks ended with exit code 0.
	Finished Phase = "Finished"
	// GivenUp is final: the verdict says why.
	GivenUp Phase = "GivenUp"
)

// StepUnknown is Record.RestoreStep where the store lost the record of a generation that agents have run.
const StepUnknown = generation.StepUnknown

// Record is all that must outlive a coordinator. It is what a Gang's status.run holds.
type Record struct {
	Generation  int64
	RestoreStep int64
	// Branch is the line of training that Generation is of, RestoreBranch that of RestoreStep. Branches is the line itself; where it has a
	// newer branch than Generation's, the next generation begins that one.
	Branch, RestoreBranch int64
	Branches              restore.Line
	// Launch is the launcher that the gang is at, Left the slots whose pods take part in no further generation of it.
	Launch Launch
	Left   []Slot
	Budget
	BestStep   int64
	StartedAt  time.Time
	Phase      Phase
	Progress   Progress
	Recoveries []Recovery // oldest first
	Verdict    *Verdict
	// Replacements counts pods that were replaced.
	Replacements int
	// Durable is the newest step that lies whole in storage, Older the one recorded before it; nil: none. Copies
	// are parts of steps that drained pods left there.
	Durable *StoredStep
	Older   *StoredStep
	Copies  []RankCopy
	// Kept are steps before Older that stay in storage, newest first.
	Kept []StoredStep
	// Pinned are steps that stay in storage because people said so. Nobody goes back to them unasked.
	Pinned []StoredStep
	// PinWish is the newest Retention.PinWish that Pinned answers.
	PinWish int64
	// Moved are the suspicions for which a pod was moved.
	Moved []cause.Suspect
	// PendingReplacements are pods that must be replaced and were not yet, Suspended those that go because their Job is suspended
	// (suspend.go). PendingPods counts both in what is stored, which lists the first (bounds.go).
	PendingReplacements []Termination
	Suspended           []Termination
	PendingPods         int
}

// Progress is what people see of a gang beside its recoveries.
type Progress struct {
	members.Seen
	account.Figures
	// Waits is what the next generation waits for; "": nothing.
	Waits string
}

// NotReached marks a phase of a Recovery that was not reached (yet).
const NotReached = account.NotReached

// Reason says why a gang ended.
type Reason string

// The reasons of a Verdict; the Gang's conditions carry the same words.
const (
	ReasonFinished         Reason = "Finished"
	ReasonSameFailureTwice Reason = "SameFailureTwice"
	ReasonNoProgress       Reason = "NoProgress"
	ReasonRefused          Reason = "LauncherRefused"
	ReasonMemberEnded      Reason = "MemberEnded"
	ReasonMaxRestarts      Reason = "MaxRestarts"
)

// Verdict ends a gang; it never changes, but that all have finished is withdrawn where a later launcher comes (launch.go).
type Verdict struct {
	Reason   Reason
	ExitCode int
	Cause    *cause.Cause
	At       time.Time
}

// Terminations are the pods that must go, each once.
func (r *Record) Terminations() []Termination {
	return replacements.Merge(r.PendingReplacements, r.Suspended)
}
