// Package protocol has the messages between an agent and the coordinator, as plain values: the meaning of each field
// is defined here, once. Both cores decide on these values, and package wire converts them to protobuf messages.
// Either side states its whole present state, never a command: a value that is lost, doubled or late changes nothing,
// and after a reconnect the first one is enough.
//
// Types with JSON names are also stored by the agent: a name never changes.
package protocol

import "time"

// Version is the version of the protocol. A coordinator refuses an agent of another one.
const Version = 1

// AgentState is what holds of the newest generation in a pod.
type AgentState string

const (
	// StateUnknown: the agent has said nothing yet, or what nobody here knows.
	StateUnknown AgentState = ""
	// StateIdle: no process of any generation has run in this container; the agent waits for a directive.
	StateIdle AgentState = "Idle"
	// StateRunning: all ranks of the generation were started and none has ended badly.
	StateRunning AgentState = "Running"
	// StateFailed: a rank ended other than with exit code 0; others may still run.
	StateFailed AgentState = "Failed"
	// StateHalted: all processes of the generation and below are proven gone, and what ranks hold sealed is final for it. Also the answer
	// to OrderHalt of a generation that never ran here.
	StateHalted AgentState = "Halted"
	// StateFinished: all ranks ended with exit code 0.
	StateFinished AgentState = "Finished"
)

// Mark names one step in storage: a step number alone says nothing, for a generation that went back makes the same steps anew. The zero
// Mark is none.
type Mark struct {
	Step int64 `json:"step,omitempty"`
	// Generation is the one in whose folder the step lies: that which ran when it was copied.
	Generation int64 `json:"generation,omitempty"`
	// Branch is that of the step. A generation has each step once, so that it follows from the other two; it orders marks of several.
	Branch int64 `json:"branch,omitempty"`
}

// Point is the step that lies there.
func (m Mark) Point() Point { return Point{Branch: m.Branch, Step: m.Step} }

// Copied is one rank's file in storage, whole and synced.
type Copied struct {
	Mark   `json:"mark"`
	Length uint64 `json:"length"`
	// Checksum is the CRC32C of the data, as the slot's seal has it.
	Checksum uint32 `json:"checksum"`
}

// Exit is how a rank's process ended by itself, or by the hand of others than the agent. A rank that had written a traceback before the
// agent ended it has an exit as well, with code 1 and that traceback.
type Exit struct {
	// Code is as a shell shows it: 128+n for signal n.
	Code int `json:"code"`
	// Signal is the number of the signal that ended it; 0: none did.
	Signal int       `json:"signal,omitempty"`
	At     time.Time `json:"at"`
	// Traceback is the last part of what the process wrote to standard error that looks like one, at most MaxText bytes.
	Traceback string `json:"traceback,omitempty"`
	// Restoring: the process had begun to bring back, by the client, the step that its generation restores, and had not done it.
	Restoring bool `json:"restoring,omitempty"`
}

// Timeline covers one repair: it starts anew when a failure is detected or OrderHalt is received, and goes on through the generation that
// follows. The times are of the pod's clock; a zero time was not reached.
type Timeline struct {
	// Detected is when the failure that ended the generation before was seen here; zero: it was seen elsewhere.
	Detected     time.Time `json:"detected,omitzero"`
	HaltReceived time.Time `json:"haltReceived,omitzero"`
	// Stopped is when all processes of the generation before were gone.
	Stopped time.Time `json:"stopped,omitzero"`
	// Verified is when sealed slots were verified for the inventory.
	Verified    time.Time `json:"verified,omitzero"`
	RunReceived time.Time `json:"runReceived,omitzero"`
	// Started is when the last local rank ran or, where scripts use the client, had attached: its imports are done.
	Started time.Time `json:"started,omitzero"`
	// Restored is when the last local rank said that its state was restored, FirstStep when the last finished its first step.
	Restored  time.Time `json:"restored,omitzero"`
	FirstStep time.Time `json:"firstStep,omitzero"`
}
