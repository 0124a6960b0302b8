package budget

import (
	"slices"
	"time"
)

// Pass is a node check of one gang that all its pods on a node passed.
type Pass struct {
	Namespace, Gang string
	At              time.Time
	// Devices is the number of ranks that were tried there with a device.
	Devices int
}

// PassMemory is how long a pass makes another check before the first generation needless.
const PassMemory = 24 * time.Hour

// Passed reports whether a gang may start on the node without a check: one passed within PassMemory, and no gang has suspected the node in
// that time.
func (n *Node) Passed(now time.Time) bool {
	return slices.ContainsFunc(n.Passes, func(p Pass) bool { return n.whole(p) && now.Sub(p.At) < PassMemory }) &&
		!slices.ContainsFunc(n.Suspicions, func(s Suspicion) bool { return now.Sub(s.At) < PassMemory })
}

// whole reports whether a pass is of the whole node: the GPU at fault may be one that was not tried.
func (n *Node) whole(p Pass) bool { return p.Devices >= n.GPUs }

// cleared reports whether the node passed the check of another gang after a suspicion, so that the suspicion alone no longer excludes it.
func (n *Node) cleared(s *Suspicion) bool {
	return slices.ContainsFunc(n.Passes, func(p Pass) bool {
		return n.whole(p) && p.At.After(s.At) && (p.Namespace != s.Namespace || p.Gang != s.Gang)
	})
}
