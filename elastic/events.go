package elastic

import "time"

// Event is what can happen to a gang.
type Event interface{ event() }

// Reported is an agent's report. Reports of one agent may come in any order, or not at all: their numbers tell.
type Reported struct {
	Slot   Slot
	Pod    Pod
	Report Report
}

// Detached says that the agent of a pod is not connected any more; what it last reported stays true until
// it says otherwise.
type Detached struct {
	Slot Slot
	Pod  string
}

// Stored says that the record of a Persist is stored: its revision, its generation, and whether it had a verdict.
type Stored struct {
	Revision   int64
	Generation int64
	Verdict    bool
}

// Ended says that the job of a gang that was given up makes no pods any more.
type Ended struct{}

// Over says that the gang's Job has ended or is being deleted: its pods' end is wanted, and none comes in their place.
type Over struct{}

// Doomed is the level: every pod of the gang that must be replaced now. One that is not listed any more and
// was not released yet stays.
type Doomed struct{ Pods []Doom }

// Released answers Replace: the pod is out of its job, and evicted or deleted.
type Released struct {
	Pod string
	At  time.Time
}

// Tick says that time has passed; it is wanted while State.Ticks says so.
type Tick struct{}

// Sought answers Seek for one slot: the pod that the API server has in a slot, the zero Pod where it has none, and whether its
// container was started and nobody deletes it.
type Sought struct {
	Slot Slot
	Pod  Pod
	Runs bool
}

func (Sought) event()   {}
func (Reported) event() {}
func (Detached) event() {}
func (Stored) event()   {}
func (Ended) event()    {}
func (Over) event()     {}
func (Doomed) event()   {}
func (Released) event() {}
func (Tick) event()     {}

// Effect is what must be done.
type Effect interface{ effect() }

// Persist wants the record stored now; Stored answers. Until then nothing new is handed out.
type Persist struct {
	Revision int64
	Record   Record
}

// Touch wants the record stored when convenient: only what people see has changed.
type Touch struct{}

// Direct says that Directive may have a new answer for any slot.
type Direct struct{}

// End wants the gang's job to fail such that it makes no pods any more; Ended answers.
type End struct{ Verdict Verdict }

// Tell wants people told, on the gang's job.
type Tell struct{ Notice Notice }

// Replace wants the pod released from its job and evicted, or, where it is dead, deleted; Released answers.
// It comes again for the same pod after a restart.
type Replace struct{ Doom Doom }

// Settled says that the account of a recovery is closed; phases that it never reached stay so.
type Settled struct{ Recovery Recovery }

// Seek wants to know which pods hold the slots whose agents are not heard; Sought answers for each, or nothing does.
type Seek struct{ Slots []Slot }

func (Seek) effect()    {}
func (Persist) effect() {}
func (Touch) effect()   {}
func (Direct) effect()  {}
func (End) effect()     {}
func (Tell) effect()    {}
func (Settled) effect() {}
func (Replace) effect() {}

// Reasons of a Notice.
const (
	NoticeRecovering = "Recovering"
	NoticeRecovered  = "Recovered"
	NoticeDoomed     = "PodDoomed"
	NoticeDrained    = "Drained"
	NoticeNotDrained = "NotDrained"
	NoticeReplaced   = "PodReplaced"
	// NoticeUnprotected tells of pods in which no rank runs under the agent, and that this is over.
	NoticeUnprotected = "Unprotected"
	// NoticeStepUnreadable begins what a gang waits for that cannot have a step which lies in storage.
	NoticeStepUnreadable = "StepUnreadable"
)

// Notice is one line for people, on the user's job.
type Notice struct {
	Warning bool
	Reason  string
	Message string
}
