package preemption

import (
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/preemption"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/topology"
)

// HeldRoom is room held for a gang.
type HeldRoom struct {
	preemption.Holding
	assignments []topology.Assumed
	// domain is where the room is, for users; victims are the names of the preempted units, pods counts their pods.
	domain  string
	victims []string
	pods    int
	// conditions: the gang lacked more than room, so pods on other nodes may exclude it as well; see Disturbed.
	conditions bool
	// degraded: it is for replaced members of a gang that has others on nodes.
	degraded bool
	since    time.Time
	// until is when an unused nomination ends.
	until time.Time
	// unusableSince is when the gang began to lack members, so that it cannot use the reservation.
	unusableSince time.Time
}

// Text describes the held room and its reason for users.
func (h *HeldRoom) Text() string {
	where := h.domain
	if where == "" {
		where = fmt.Sprintf("room on %d nodes", len(h.nodes()))
	}
	if !h.Reserved {
		return fmt.Sprintf("%s is nominated for it until %s: preempting %s (%d pods)", where, h.until.UTC().Format(time.TimeOnly), someOf(h.victims), h.pods)
	}
	text := where + " is reserved for it"
	if !h.At.IsZero() {
		text += ", expected to be free at " + h.At.UTC().Format(time.TimeOnly)
	}
	return text
}

// Status returns the held room for the Gang's status.
func (h *HeldRoom) Status() *v1alpha1.HeldRoom {
	room := &v1alpha1.HeldRoom{Kind: v1alpha1.HeldReservation, Domain: h.domain, Nodes: status.Names(h.nodes()), Since: whole(h.since)}
	if !h.Reserved {
		room.Kind, room.Victims, room.VictimPods = v1alpha1.HeldNomination, status.Names(h.victims), int32(h.pods)
		room.Until = ptr.To(whole(h.until))
	} else if !h.At.IsZero() {
		room.ExpectedAt = ptr.To(whole(h.At))
	}
	return room
}

// whole truncates a time to seconds, as the API server does.
func whole(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func (h *HeldRoom) nodes() []string {
	var names []string
	seen := map[string]bool{}
	for _, s := range h.assignments {
		if !seen[s.Node] {
			seen[s.Node] = true
			names = append(names, s.Node)
		}
	}
	return names
}

func someOf(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// HeldRooms is all held room, by gang. Its lock is a leaf.
type HeldRooms struct {
	mu sync.Mutex
	of map[types.NamespacedName]*HeldRoom
	// byNode is, by node, the gangs with room held there.
	byNode map[string][]types.NamespacedName
	// freed are nodes on which held room was released, until TakeFreed.
	freed []string
	// kept are single pods that held room excluded, to be retried when room is released.
	kept map[types.UID]*v1.Pod
}

// mostKept bounds the pods that are retried at once; others are retried at their next event.
const mostKept = 1000

// NewHeldRooms returns an empty HeldRooms.
func NewHeldRooms() *HeldRooms {
	return &HeldRooms{of: map[types.NamespacedName]*HeldRoom{}, byNode: map[string][]types.NamespacedName{}, kept: map[types.UID]*v1.Pod{}}
}

// Get returns the room held for a gang.
func (h *HeldRooms) Get(key types.NamespacedName) (HeldRoom, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.of[key]; one != nil {
		return *one, true
	}
	return HeldRoom{}, false
}

// stands reports whether that nomination is still held for the gang.
func (h *HeldRooms) stands(key types.NamespacedName, nomination HeldRoom) bool {
	one, ok := h.Get(key)
	return ok && !one.Reserved && one.since.Equal(nomination.since)
}

// keep holds room for a gang and replaces what was held.
func (h *HeldRooms) keep(key types.NamespacedName, one HeldRoom) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(key)
	h.of[key] = &one
	for _, name := range one.nodes() {
		h.byNode[name] = append(h.byNode[name], key)
	}
}

// drop releases the room held for a gang and returns the single pods that it excluded.
func (h *HeldRooms) drop(key types.NamespacedName) (free []*v1.Pod, was bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was = h.remove(key); was {
		for uid, pod := range h.kept {
			free = append(free, pod)
			delete(h.kept, uid)
		}
	}
	return free, was
}

func (h *HeldRooms) remove(key types.NamespacedName) bool {
	one := h.of[key]
	if one == nil {
		return false
	}
	delete(h.of, key)
	for _, name := range one.nodes() {
		h.freed = append(h.freed, name)
		left := h.byNode[name][:0:0]
		for _, k := range h.byNode[name] {
			if k != key {
				left = append(left, k)
			}
		}
		if h.byNode[name] = left; len(left) == 0 {
			delete(h.byNode, name)
		}
	}
	return true
}

// keys returns a copy of all held room.
func (h *HeldRooms) keys() map[types.NamespacedName]HeldRoom {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[types.NamespacedName]HeldRoom, len(h.of))
	for key, one := range h.of {
		all[key] = *one
	}
	return all
}

// HeldAgainst returns the room that a gang must not use. A degraded gang goes before all gangs of its priority that were never complete: it
// may use what is reserved for these.
func (h *HeldRooms) HeldAgainst(key types.NamespacedName, priority int32, degraded bool, end time.Time) []topology.Assumed {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []topology.Assumed
	for other, one := range h.of {
		if ahead := degraded && one.Reserved && !one.degraded && priority >= one.Priority; other != key && !ahead && one.Excludes(priority, end) {
			all = append(all, one.assignments...)
		}
	}
	return all
}

// TakeFreed returns, once, the nodes on which held room was released.
func (h *HeldRooms) TakeFreed() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.freed
	h.freed = nil
	return all
}

// Any reports whether any room is held.
func (h *HeldRooms) Any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.of) > 0
}

// heldOn returns how much of a node a pod must not use, and for which gang it is held.
func (h *HeldRooms) heldOn(node string, priority int32, end time.Time) (held topology.Resources, beneficiary types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range h.byNode[node] {
		one := h.of[key]
		if !one.Excludes(priority, end) {
			continue
		}
		for _, s := range one.assignments {
			if s.Node != node {
				continue
			}
			if held == nil {
				held, beneficiary = topology.Resources{}, key
			}
			for what, v := range s.Usage.Resources {
				held[what] += v
			}
		}
	}
	return held, beneficiary
}

// KeepOut records a pod that held room excludes, to be retried when room is released.
func (h *HeldRooms) KeepOut(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept) < mostKept {
		h.kept[pod.UID] = pod
	}
}

// FilterHeld rejects a single pod from room on a node that is held for a gang.
func (p *Preemptor) FilterHeld(pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.config.Planner.Attendant(pod) {
		return nil
	}
	held, beneficiary := p.rooms.heldOn(node.Node().Name, corev1helpers.PodPriority(pod), settings.WouldEnd(pod, time.Now()))
	if held == nil {
		return nil
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	left := p.config.Planner.Free(node)
	for what, v := range p.config.Planner.Requests(info) {
		if left[what]-held[what] < v {
			p.rooms.KeepOut(pod)
			return fwk.NewStatus(fwk.Unschedulable, "room on the node is held for gang "+beneficiary.String())
		}
	}
	return nil
}

// releaseRoom releases the room held for a gang, and retries the pods that it excluded: asynchronously, because the caller may be in a
// scheduling cycle.
func (p *Preemptor) releaseRoom(logger klog.Logger, key types.NamespacedName) {
	free, was := p.rooms.drop(key)
	if !was {
		return
	}
	p.config.Publish(key)
	go func() {
		p.config.Activate(logger, free)
		for _, other := range p.config.Gangs.Refused() {
			if other != key {
				p.config.Wake(logger, other)
			}
		}
	}()
}

// noteUnusable records whether a gang lacks members to use its held room, and returns how long it has lacked them.
func (h *HeldRooms) noteUnusable(key types.NamespacedName, idle bool, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of[key]
	switch {
	case one == nil:
		return 0
	case !idle:
		one.unusableSince = time.Time{}
		return 0
	case one.unusableSince.IsZero():
		one.unusableSince = now
	}
	return now.Sub(one.unusableSince)
}

// Lapse releases the room of gangs that are gone or have what they need, nominations that timed out, and reservations of gangs that have
// lacked members for too long.
func (p *Preemptor) Lapse(logger klog.Logger, now time.Time) {
	for key, h := range p.rooms.keys() {
		unusable := p.rooms.noteUnusable(key, !p.config.Gangs.Schedulable(key), now)
		switch {
		case !p.config.Gangs.Needs(key):
		case !h.Reserved && now.After(h.until):
			logger.Info("A nomination ended because it was not used in time", "gang", key, "room", h.Text())
		case h.Reserved && unusable >= p.config.Args.InitialPlacementTimeout.Duration:
			logger.Info("A reservation ended because its gang lacks members", "gang", key, "room", h.Text())
		default:
			continue
		}
		p.releaseRoom(logger, key)
		p.config.Wake(logger, key)
	}
}
