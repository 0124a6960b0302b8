package protocol

import "time"

// MaxCheckAnswers is the most answers of a report: one per round. MaxTrialText bounds each text of an answer, in bytes.
const MaxCheckAnswers, MaxTrialText = 8, 300

// TrialID names a trial of a node check. A trial with another ID is another trial.
type TrialID struct {
	// Check is the generation that the check precedes.
	Check int64 `json:"check"`
	// Round and Attempt are those of package elastic/check.
	Round   int `json:"round"`
	Attempt int `json:"attempt"`
	// Partner is the UID of the other pod; "": alone.
	Partner string `json:"partner,omitempty"`
}

// Trial is what one pod is to try, while no generation runs; the zero Trial: nothing.
type Trial struct {
	TrialID
	// BaseRank is the rank of this pod's local rank 0 among WorldSize ranks, 0 in the pod that serves the store at Store (HOST:PORT).
	BaseRank, WorldSize int
	Store               string
	// Imports is how long the processes may import, Within how long all their other parts may take.
	Imports, Within time.Duration
}

// TrialOutcome is how a trial ended.
type TrialOutcome string

const (
	TrialPassed TrialOutcome = "passed"
	TrialFailed TrialOutcome = "failed"
	// TrialWrong: an arithmetic result differs from the known one.
	TrialWrong TrialOutcome = "wrong"
	// TrialAbsent: the other pod did not come.
	TrialAbsent TrialOutcome = "absent"
	// TrialLate: the imports did not end in their time.
	TrialLate TrialOutcome = "late"
	// TrialLost: the trial was ended early, with its agent or for another trial.
	TrialLost TrialOutcome = "lost"
)

// TrialAnswer is what one pod answers about a trial.
type TrialAnswer struct {
	TrialID
	Outcome TrialOutcome `json:"outcome"`
	// Text is what failed, at most MaxTrialText bytes.
	Text string `json:"text,omitempty"`
	// Speed is that of the slowest rank: operations per second alone, bytes per second in a pair; 0: not measured.
	Speed float64 `json:"speed,omitempty"`
	Model string  `json:"model,omitempty"`
	// Backend is the one in which torch exchanges bytes with other pods, "tcp" without torch; "": unknown.
	Backend string `json:"backend,omitempty"`
}
