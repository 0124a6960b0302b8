package claims

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Handle is the part of the scheduling framework's handle that this package uses.
type Handle interface {
	SharedDRAManager() fwk.SharedDRAManager
	SnapshotSharedLister() fwk.SharedLister
}

// Extended reports which extended resources pods get by claims: those of a device class, if no node has a device plugin for the resource.
// If some node has, the resource is counted there, and nodes of the class are not used.
type Extended struct {
	handle Handle

	mu sync.Mutex
	// native records, by resource, whether a node has it, as of looked. Guarded by mu.
	native map[v1.ResourceName]bool
	looked time.Time
}

// lookAtNodesEvery is the shortest interval between two reads of all nodes for native.
const lookAtNodesEvery = 5 * time.Second

// NewExtended returns an Extended for one profile.
func NewExtended(handle Handle) *Extended { return &Extended{handle: handle} }

// ByClaim reports whether pods get an extended resource by claims.
func (s *Extended) ByClaim(name v1.ResourceName) bool {
	manager := s.handle.SharedDRAManager()
	if manager == nil || manager.DeviceClassResolver().GetDeviceClass(name) == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.native == nil || now.Sub(s.looked) > lookAtNodesEvery {
		s.native, s.looked = map[v1.ResourceName]bool{}, now
	}
	native, known := s.native[name]
	if !known {
		nodes, err := s.handle.SnapshotSharedLister().NodeInfos().List()
		native = err != nil || slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return n.GetAllocatable().GetScalarResources()[name] > 0 })
		s.native[name] = native
	}
	return !native
}
