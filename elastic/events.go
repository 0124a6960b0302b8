package elastic

import (
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Event is what can happen to a gang.
type Event interface{ event() }

// Reported is an agent's report. Reports of one agent may arrive in any order, or not at all: incarnation and sequence
// order them.
type Reported struct {
	Slot   Slot
	Pod    Pod
	Report protocol.Report
}

// Detached says that the agent of a pod is not connected any more; what it last reported stays true until
// it says otherwise.
type Detached struct {
	Slot Slot
	Pod  string
}

// Stored says that the record of a Persist is stored: its revision and its generation.
type Stored struct {
	Revision   int64
	Generation int64
}

// Ended says that the job of a gang that was given up makes no pods any more.
type Ended struct{}

// Over says that the gang's Job has ended or is being deleted: its pods are meant to end, and none replaces them.
type Over struct{}

// ReplacementsPending is a level: every pod of the gang that must be replaced now. A pod that is no longer listed and
// was not released yet stays.
type ReplacementsPending struct{ Pods []Termination }

// Suspended is a level: the Job is suspended, all its pods terminate, and none replaces them for now.
// ReplacementsPending says that the Job goes on.
type Suspended struct{ Pods []Termination }

// Released answers Replace: the pod is out of its job, and evicted or deleted.
type Released struct {
	Pod string
	At  time.Time
}

// Retain is a level: what the job asks to be kept in storage.
type Retain struct{ Retention Retention }

// Tick says that time has passed; it is wanted while State.Ticks says so.
type Tick struct{}

// GoBack asks for a new branch of training that begins after a step: what was trained after it is given up. GoBackRefused answers where
// that cannot be.
type GoBack struct{ To protocol.Point }

// SlotHolder answers LookupHolders for one slot: the pod that the API server has in the slot (the zero Pod where it has
// none), and whether its container was started and it is not being deleted. Succeeded: there is none, for the newest has ended well.
type SlotHolder struct {
	Slot      Slot
	Pod       Pod
	Runs      bool
	Succeeded bool
}

func (SlotHolder) event()          {}
func (Reported) event()            {}
func (Detached) event()            {}
func (Stored) event()              {}
func (Ended) event()               {}
func (Over) event()                {}
func (ReplacementsPending) event() {}
func (Suspended) event()           {}
func (Released) event()            {}
func (Retain) event()              {}
func (Tick) event()                {}
func (GoBack) event()              {}

// Effect is what must be done.
type Effect interface{ effect() }

// Persist asks for the record to be stored now; Stored answers. Until then no new generation is handed out.
type Persist struct {
	Revision int64
	Record   Record
}

// PersistLater asks for the record to be stored when convenient: only what people see has changed.
type PersistLater struct{}

// Broadcast says that Directive may have a new answer for any slot.
type Broadcast struct{}

// End asks for the gang's job to fail such that it creates no more pods; Ended answers.
type End struct{ Verdict Verdict }

// EmitEvent wants people told, on the gang's job.
type EmitEvent struct{ Notice Notice }

// Replace asks for the pod to be released from its Job and evicted or, where it is dead, deleted; Released answers. It
// is emitted again for the same pod after a restart.
type Replace struct{ Termination Termination }

// GoBackRefused answers GoBack: the gang goes on as it did, and why.
type GoBackRefused struct{ Why string }

// Settled says that the account of a recovery is closed; phases that it never reached stay so.
type Settled struct{ Recovery Recovery }

// MadeDurable says that the stored record names a new durable step, so long after all ranks held it sealed.
type MadeDurable struct{ Gap time.Duration }

// Saved says what became of saves that were told of for the first time, of all ranks together.
type Saved struct{ Saves protocol.Saves }

// LookupHolders asks which pods hold the slots of unreachable agents; SlotHolder answers for each slot, or nothing
// does.
type LookupHolders struct{ Slots []Slot }

func (LookupHolders) effect() {}
func (Persist) effect()       {}
func (PersistLater) effect()  {}
func (Broadcast) effect()     {}
func (End) effect()           {}
func (EmitEvent) effect()     {}
func (Settled) effect()       {}
func (MadeDurable) effect()   {}
func (Saved) effect()         {}
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
	// NoticeUnprotected tells of pods in which no rank runs under the agent, and that this is over.
	NoticeUnprotected = "Unprotected"
	// NoticeStepUnreadable begins what a gang waits for that cannot have a step which lies in storage.
	NoticeStepUnreadable = "StepUnreadable"
	// NoticeStepGivenUp tells of a step that ranks failed to restore.
	NoticeStepGivenUp = "StepGivenUp"
)

// Notice is one line for people, on the user's job.
type Notice struct {
	Warning bool
	Reason  string
	Message string
}
