package protocol

import "time"

// Limits that both sides rely on.
const (
	// MaxGeneration bounds the numbers in a report: far above any real number, far below overflow.
	MaxGeneration = 1 << 52
	// MaxRanks is the most ranks of a pod: admission, the agent and the coordinator refuse more.
	MaxRanks = 1024
	// MaxLaunch bounds the launcher's number in a report, as MaxGeneration does: it rises with each launcher of a command.
	MaxLaunch = 1 << 30
	// MaxText is the most bytes of a traceback in a report.
	MaxText = 4096
	// MaxReport is the most bytes of a report's message: an agent drops what does not fit, a coordinator refuses more.
	MaxReport = 256 << 10
	// MaxAuthorities is the most bytes of Directive.Authorities that an agent accepts: room for some ten.
	MaxAuthorities = 16 << 10
	// RestartsWithoutProgress is the number of restarts without progress after which a gang is given up, if the user sets no limit. kubectl
	// holdfast explain and the docs show it.
	RestartsWithoutProgress = 10
	// MaxRestarts bounds the user's limit.
	MaxRestarts = 1 << 30
	// ExitRefused is the exit code of a refused launcher or command.
	ExitRefused = 2
	// DefaultGrace is the grace period of a pod that sets none.
	DefaultGrace = 30 * time.Second

	// leastMargin is the least part of a grace period for ending processes, marginShare the share: a fifth.
	leastMargin = 3 * time.Second
	marginShare = 5
)

// ShutdownMargin returns the part of a pod's grace period in which its agent ends processes. Before that the pod trains on, and the
// coordinator may wait for its state.
func ShutdownMargin(grace time.Duration) time.Duration {
	return min(max(leastMargin, grace/marginShare), grace)
}
