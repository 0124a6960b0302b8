package elastic

// Event is what can happen to a gang.
type Event interface{ event() }

// Reported is an agent's report. Reports of one agent arrive in the order they were sent, or not at all.
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

// Stored says that a record with this generation is stored, and whether it had a verdict.
type Stored struct {
	Generation int64
	Verdict    bool
}

// Ended says that the job of a gang that was given up makes no pods any more.
type Ended struct{}

func (Reported) event() {}
func (Detached) event() {}
func (Stored) event()   {}
func (Ended) event()    {}

// Effect is what must be done.
type Effect interface{ effect() }

// Persist wants the record stored now; Stored answers. Until then nothing new is handed out.
type Persist struct{ Record Record }

// Touch wants the record stored when convenient: only what people see has changed.
type Touch struct{}

// Direct says that Directive may have a new answer for any slot.
type Direct struct{}

// End wants the gang's job to fail such that it makes no pods any more; Ended answers.
type End struct{ Verdict Verdict }

// Tell wants people told, on the gang's job.
type Tell struct{ Notice Notice }

// Settled says that the account of a recovery is closed; phases that it never reached stay so.
type Settled struct{ Recovery Recovery }

func (Persist) effect() {}
func (Touch) effect()   {}
func (Direct) effect()  {}
func (End) effect()     {}
func (Tell) effect()    {}
func (Settled) effect() {}

// Reasons of a Notice.
const (
	NoticeRecovering = "Recovering"
	NoticeRecovered  = "Recovered"
)

// Notice is one line for people, on the user's job.
type Notice struct {
	Warning bool
	Reason  string
	Message string
}
