package gangcache

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/topology"
)

// Terms are the requirements of a gang that its group states.
type Terms struct {
	// Size is how many members must exist before any is placed. Once some have nodes, Min is enough.
	Size int
	// Min is how many members must be on nodes for the gang to run; the others join when they fit. 0: all.
	Min int
	// Unit is of how many consecutive slots the blocks are of which such a gang goes on with whole ones: those of which no member has a node
	// are placed together. 0: 1.
	Unit int
	// Tasks is Min for the members of each task.
	Tasks map[string]int
	// Topology is the group's topology request; a pod's own annotations override it.
	Topology gang.Topology
	// Free is what must be free in the whole cluster before any is placed.
	Free topology.Resources
	// Timeout is how long a gang in initial placement may hold nodes while it lacks members; 0: as configured.
	Timeout time.Duration
	// Ignored lists the object's settings that are not supported, and why.
	Ignored []string
}

// OwnTerms returns the terms of a Holdfast gang, from any of its pods. The caller limits Size (external.Book.Terms).
func OwnTerms(pod *corev1.Pod) (Terms, error) {
	size, err := membership.GangSize(pod)
	if least := membership.GangMin(pod, size); err == nil && least < size {
		return Terms{Size: size, Min: least, Unit: membership.GangUnit(pod, size)}, nil
	}
	return Terms{Size: size}, err
}

// Asks returns a gang's topology request: that of its pods, else that of its group.
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
