package protocol

import "time"

// What both sides count on of each other.
const (
	// MaxGeneration bounds what an agent may claim: far above any real number, far below overflow.
	MaxGeneration = 1 << 52
	// MaxRanks is how many ranks a pod has at most: more is refused at admission, where a launcher comes, and of a report.
	MaxRanks = 1024
	// MaxLaunch bounds what an agent may claim, as MaxGeneration does: a number rises with each launcher of a command.
	MaxLaunch = 1 << 30
	// MaxText is how many bytes of a traceback an agent tells.
	MaxText = 4096
	// MaxReport is how many bytes the message of a report has at most: an agent leaves out what does not fit, a coordinator refuses more.
	MaxReport = 256 << 10
	// MaxAuthorities is how many bytes of Directive.Authorities an agent takes: room for some ten.
	MaxAuthorities = 16 << 10
	// RestartsWithoutProgress is how often a gang is restarted without progress before it is given up, if the user sets no number.
	// kubectl holdfast explain and the docs show it.
	RestartsWithoutProgress = 10
	// MaxRestarts bounds what users may set.
	MaxRestarts = 1 << 30
	// ExitRefused is the exit code of a launcher, or a command, that cannot be honoured.
	ExitRefused = 2
	// DefaultGrace is what Kubernetes gives a pod that says nothing of it.
	DefaultGrace = 30 * time.Second

	// leastMargin is the least of a grace that is kept for ending processes, marginShare the share: a fifth.
	leastMargin = 3 * time.Second
	marginShare = 5
)

// ShutdownMargin is the part of a pod's grace that its agent keeps for ending processes. For the rest it trains on, and for so long may
// the pod's state be waited for.
func ShutdownMargin(grace time.Duration) time.Duration {
	return min(max(leastMargin, grace/marginShare), grace)
}
