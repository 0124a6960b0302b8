package elastic

import (
	"time"

	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/waiting"
	"holdfast.dev/holdfast/internal/protocol"
)

// Event is an input of Step.
type Event interface{ event() }

// Reported is an agent's report. Reports of one agent may be lost or arrive in any order: incarnation and sequence order them.
type Reported struct {
	Slot   Slot
	Pod    Pod
	Report protocol.Report
}

// Detached reports that the agent of a pod is disconnected; its last report stays valid until the next.
type Detached struct {
	Slot Slot
	Pod  string
}

// Stored reports that the record of a Persist is stored: its revision and its generation.
type Stored struct {
	Revision   int64
	Generation int64
}

// Ended reports that the job of a gang that was given up creates no more pods.
type Ended struct{}

// Over reports that the gang's Job has ended or is being deleted: its pods end and are not replaced.
type Over struct{}

// ReplacementsPending is a level: every pod of the gang that must be replaced now. A pod that is no longer listed stays, unless it
// was released.
type ReplacementsPending struct{ Pods []Termination }

// Suspended is a level: the Job is suspended, all its pods terminate, and are not replaced for now. ReplacementsPending resumes the
// Job.
type Suspended struct{ Pods []Termination }

// Released answers Replace: the pod is released from its job, and evicted or deleted.
type Released struct {
	Pod string
	At  time.Time
}

// Retain is a level: the job's retention settings.
type Retain struct{ Retention Retention }

// Supervise is a level: the job's settings for a gang that stands still.
type Supervise struct{ Supervision Supervision }

// Limit is a level: the job's least number of pods.
type Limit struct{ quorum.Limits }

// Placed is a level: where the pods of a gang with a minimum are. A slot that is not listed has no pod.
type Placed struct{ Pods []Placement }

// Tick reports that time has passed; it is needed while State.Ticks is true.
type Tick struct{}

// GoBack requests a rollback: a new branch of training begins after a step, and all training after it is given up. GoBackRefused answers if
// that is impossible.
type GoBack struct{ To protocol.Point }

// SlotHolder answers LookupHolders for one slot: the pod that the API server has there (the zero Pod: none), and whether its container was
// started and it is not being deleted. Succeeded: there is no pod, because the newest one succeeded.
type SlotHolder struct {
	Slot      Slot
	Pod       Pod
	Runs      bool
	Succeeded bool
}

// NodeKnown is what is known of a node from checks of any gang.
type NodeKnown struct {
	// Passed: a check of all its devices passed not long ago, and no gang has suspected it in that time.
	Passed bool
	// Accusations is how often checks named it.
	Accusations int
}

// NodesKnown answers LookupNodes: what is known of these nodes, by name, and the usual speeds in checks, by model.
type NodesKnown struct {
	Nodes map[string]NodeKnown
	Usual map[string]check.Usual
}

func (NodesKnown) event()          {}
func (SlotHolder) event()          {}
func (Limit) event()               {}
func (Placed) event()              {}
func (Reported) event()            {}
func (Detached) event()            {}
func (Stored) event()              {}
func (Ended) event()               {}
func (Over) event()                {}
func (ReplacementsPending) event() {}
func (Suspended) event()           {}
func (Released) event()            {}
func (Retain) event()              {}
func (Supervise) event()           {}
func (Tick) event()                {}
func (GoBack) event()              {}

// Effect is an output of Step: an action for the caller.
type Effect interface{ effect() }

// Persist requests to store the record now; Stored answers. Until then no agent receives a new generation.
type Persist struct {
	Revision int64
	Record   Record
}

// PersistLater requests to store the record some time later: only what users see has changed.
type PersistLater struct{}

// Broadcast reports that Directive may return another message for any slot. For an agent that has just reported it may without.
type Broadcast struct{}

// Wake requests a Tick after this time.
type Wake struct{ After time.Duration }

// End requests that the gang's job fails and creates no more pods; Ended answers.
type End struct{ Verdict Verdict }

// EmitEvent requests a Kubernetes event on the gang's job.
type EmitEvent struct{ Notice Notice }

// Replace requests that the pod is released from its Job and evicted or, if it is dead, deleted; Released answers. It is emitted
// again for the same pod after a restart.
type Replace struct{ Termination Termination }

// GoBackRefused answers GoBack: the gang continues unchanged, and why.
type GoBackRefused struct{ Why string }

// Settled reports that the account of a recovery is closed; phases that it did not reach stay empty.
type Settled struct{ Recovery Recovery }

// MadeDurable reports that the stored record names a new durable step, and the time since all ranks held it sealed.
type MadeDurable struct{ Gap time.Duration }

// Saved counts newly reported saves, by result, of all ranks together.
type Saved struct{ Saves protocol.Saves }

// Judged reports a new verdict on a gang that makes no step.
type Judged struct{ Kind waiting.Kind }

// Checked reports that a node check has ended and how long it took, or the number of pods that it named.
type Checked struct {
	Result CheckResult
	Took   time.Duration
	Named  int
}

// LookupHolders queries which pods hold the slots of unreachable agents; SlotHolder answers for each slot, unless the query fails.
type LookupHolders struct{ Slots []Slot }

// LookupNodes queries what is known of nodes from checks; NodesKnown answers, also if the query fails.
type LookupNodes struct{ Names []string }

// NodePass is a node all pods of which passed a check.
type NodePass struct {
	Node string
	// Devices is the number of ranks there that were tried with a device of this model.
	Devices int
	Model   string
	Speed   check.Usual
}

// NotePasses requests that passes are recorded on their nodes.
type NotePasses struct{ Passes []NodePass }

// Forgive requests that the gang's word about a slow node no longer excludes it. It may be emitted again.
type Forgive struct{ Node string }

func (Forgive) effect()       {}
func (NotePasses) effect()    {}
func (LookupNodes) effect()   {}
func (Checked) effect()       {}
func (LookupHolders) effect() {}
func (Persist) effect()       {}
func (PersistLater) effect()  {}
func (Broadcast) effect()     {}
func (Wake) effect()          {}
func (End) effect()           {}
func (EmitEvent) effect()     {}
func (Settled) effect()       {}
func (MadeDurable) effect()   {}
func (Saved) effect()         {}
func (Judged) effect()        {}
func (Replace) effect()       {}
func (GoBackRefused) effect() {}

// Reasons of a Notice.
const (
	NoticeRecovering         = "Recovering"
	NoticeRecovered          = "Recovered"
	NoticeReplacementPending = "PodReplacementPending"
	NoticeDrained            = "Drained"
	NoticeNotDrained         = "NotDrained"
	NoticeReplaced           = "PodReplaced"
	// NoticeUnprotected reports pods in which no rank runs under the agent, and the end of that state.
	NoticeUnprotected = "Unprotected"
	// NoticeStepUnreadable is the start of the text about a stored step that a gang waits for and cannot read.
	NoticeStepUnreadable = "StepUnreadable"
	// NoticeStepGivenUp reports a step that ranks failed to restore.
	NoticeStepGivenUp = "StepGivenUp"
	// NoticeStandsStill reports who is waited for in a gang that makes no step, and the end of that state.
	NoticeStandsStill = "StandsStill"
	// NoticeNodeCheckFailed reports a pod that a node check named; NoticeNodeCheck the result of a check.
	NoticeNodeCheckFailed = "NodeCheckFailed"
	NoticeNodeCheck       = "NodeCheck"
	// NoticeFewer reports that the gang goes on with fewer pods, and the end of that.
	NoticeFewer = "RunsWithFewer"
	// NoticeNoHealthyNode reports that a pod in place of one that a check named finds no node, or that no node is left to try.
	NoticeNoHealthyNode = "NoHealthyNode"
	// NoticeNodeSlow reports a pod that a node check found slow.
	NoticeNodeSlow = "NodeSlow"
)

// Notice is one line for users, on their job.
type Notice struct {
	Warning bool
	Reason  string
	Message string
}
