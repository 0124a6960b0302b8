// Package protocol defines the messages between an agent and the coordinator as plain values, with the meaning of each
// field. The packages ckptagent and elastic decide on these values. Package wire converts them to protobuf messages and
// back. Each message states the sender's whole present state. So a message that is lost, doubled or late changes
// nothing, and one message is enough after a reconnect.
//
// The agent also stores the types that have JSON names. Such a name must not change.
package protocol

import "time"

// Version is the version of the protocol. A coordinator refuses an agent of another one.
const Version = 1

// AgentState is the state of the newest generation in a pod.
type AgentState string

const (
	// StateUnknown: the agent has not reported yet, or reported an unknown state.
	StateUnknown AgentState = ""
	// StateIdle: no process of any generation has run in this container; the agent waits for a directive.
	StateIdle AgentState = "Idle"
	// StateRunning: all ranks of the generation were started and none has failed.
	StateRunning AgentState = "Running"
	// StateFailed: a rank ended other than with exit code 0; others may still run.
	StateFailed AgentState = "Failed"
	// StateHalted: all processes of this and earlier generations are proven gone, and the inventory of sealed steps is final. It also
	// answers OrderHalt of a generation that never ran here.
	StateHalted AgentState = "Halted"
	// StateFinished: all ranks ended with exit code 0.
	StateFinished AgentState = "Finished"
)

// Mark identifies one step in storage. A step number alone does not: a generation after a rollback makes the same steps again. The zero
// Mark: none.
type Mark struct {
	Step int64 `json:"step,omitempty"`
	// Generation is the generation whose folder has the step: the one that ran when it was copied.
	Generation int64 `json:"generation,omitempty"`
	// Branch is the step's branch. It follows from step and generation; it orders marks of several branches.
	Branch int64 `json:"branch,omitempty"`
}

// Point returns the mark's step.
func (m Mark) Point() Point { return Point{Branch: m.Branch, Step: m.Step} }

// Copied is one rank's file in storage, complete and synced.
type Copied struct {
	Mark   `json:"mark"`
	Length uint64 `json:"length"`
	// Checksum is the CRC32C of the data, as in the slot's seal.
	Checksum uint32 `json:"checksum"`
}

// Exit is how a rank's process ended, unless the agent ended it. A rank that had written a traceback before the agent ended it also has an
// Exit, with code 1 and that traceback.
type Exit struct {
	// Code is the exit code that a shell reports: 128+n for signal n.
	Code int `json:"code"`
	// Signal is the number of the signal that ended it; 0: none.
	Signal int       `json:"signal,omitempty"`
	At     time.Time `json:"at"`
	// Traceback is the end of the traceback that the process wrote, at most MaxText bytes.
	Traceback string `json:"traceback,omitempty"`
	// Restoring: the process had begun to restore its generation's step with the client, and had not finished.
	Restoring bool `json:"restoring,omitempty"`
}

// Timeline covers one recovery: it starts when a failure is detected or OrderHalt is received, and includes the next generation. The times
// are of the pod's clock; a zero time was not reached.
type Timeline struct {
	// Detected is when this pod detected the failure that ended the previous generation; zero: another pod did.
	Detected     time.Time `json:"detected,omitzero"`
	HaltReceived time.Time `json:"haltReceived,omitzero"`
	// Stopped is when all processes of the previous generation were gone.
	Stopped time.Time `json:"stopped,omitzero"`
	// Verified is when sealed slots were verified for the inventory.
	Verified    time.Time `json:"verified,omitzero"`
	RunReceived time.Time `json:"runReceived,omitzero"`
	// Started is when the last local rank ran or, if scripts use the client, had attached: its imports are done.
	Started time.Time `json:"started,omitzero"`
	// Restored is when the last local rank reported its state as restored, FirstStep when the last finished its first step.
	Restored  time.Time `json:"restored,omitzero"`
	FirstStep time.Time `json:"firstStep,omitzero"`
}
