package gangcache

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/topology"
)

// Terms are what is known of a gang besides its pods.
type Terms struct {
	// Size is how many members must exist before any is placed.
	Size int
	// Min is how many must be on nodes for the gang to do anything; the others come when they fit. 0: all.
	Min int
	// Tasks is the same for the members of each task.
	Tasks map[string]int
	// Topology is what the group asks of the fabric; what a pod's own annotations say wins.
	Topology gang.Topology
	// Free is what must be free in the whole cluster before any is placed.
	Free topology.Resources
	// Timeout is how long the gang may hold nodes while it lacks members and never was whole; 0: as configured.
	Timeout time.Duration
	// Ignored lists the object's settings that are not supported, and why.
	Ignored []string
}

// OwnTerms are those of a Holdfast gang, from any of its pods; the caller refuses too many pods (external.Book.Terms).
func OwnTerms(pod *corev1.Pod) (Terms, error) {
	size, err := membership.GangSize(pod)
	return Terms{Size: size}, err
}

// Asks is what a gang asks of the fabric: what its pods say, else what its group does.
func Asks(pod *corev1.Pod, t Terms) (gang.Topology, error) {
	asks, err := settings.GangTopology(pod)
	if err != nil || t.Topology == (gang.Topology{}) {
		return asks, err
	}
	if asks.Required == "" && asks.Preferred == "" {
		asks.Required, asks.Preferred = t.Topology.Required, t.Topology.Preferred
	}
	return asks, nil
}
