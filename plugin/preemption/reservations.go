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
	"holdfast.dev/holdfast/gang/yield"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/topology"
)

// Reservation is room that is kept for a gang.
type Reservation struct {
	yield.Hold
	seats []topology.Taking
	// domain is where that is, for people; yields names who leaves, pods how many.
	domain string
	yields []string
	pods   int
	// lost: it is for members that came back to a gang on nodes.
	lost  bool
	since time.Time
	// until is when a claim ends that was not used.
	until time.Time
	// idle is since when the gang was seen to lack members, so that it could not use what is reserved.
	idle time.Time
}

// Words say for people what is held and why.
func (h *Reservation) Words() string {
	where := h.domain
	if where == "" {
		where = fmt.Sprintf("room on %d nodes", len(h.nodes()))
	}
	if !h.Reserved {
		return fmt.Sprintf("%s is held for it until %s: %s leave (%d pods)", where, h.until.UTC().Format(time.TimeOnly), someOf(h.yields), h.pods)
	}
	text := where + " is reserved for it"
	if !h.At.IsZero() {
		text += ", expected to be free at " + h.At.UTC().Format(time.TimeOnly)
	}
	return text
}

// Status is the same for programs.
func (h *Reservation) Status() *v1alpha1.HeldRoom {
	room := &v1alpha1.HeldRoom{Kind: v1alpha1.HeldReservation, Domain: h.domain, Nodes: h.nodes(), Since: whole(h.since)}
	if !h.Reserved {
		room.Kind, room.Leaving, room.LeavingPods = v1alpha1.HeldClaim, h.yields, int32(h.pods)
		room.Until = ptr.To(whole(h.until))
	} else if !h.At.IsZero() {
		room.ExpectedAt = ptr.To(whole(h.At))
	}
	return room
}

// whole is a time as an API server keeps it.
func whole(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func (h *Reservation) nodes() []string {
	var names []string
	seen := map[string]bool{}
	for _, s := range h.seats {
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

// Reservations are all room that is kept, by gang. Its lock is a leaf.
type Reservations struct {
	mu sync.Mutex
	of map[types.NamespacedName]*Reservation
	// byNode finds holds by node.
	byNode map[string][]types.NamespacedName
	// kept are single pods that were kept out, to be tried again when room is held no more.
	kept map[types.UID]*v1.Pod
}

// mostKept bounds the pods that are tried again at once; others have their turn with the next event.
const mostKept = 1000

// NewReservations returns an empty set.
func NewReservations() *Reservations {
	return &Reservations{of: map[types.NamespacedName]*Reservation{}, byNode: map[string][]types.NamespacedName{}, kept: map[types.UID]*v1.Pod{}}
}

// Get returns what is held for a gang.
func (h *Reservations) Get(key types.NamespacedName) (Reservation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.of[key]; one != nil {
		return *one, true
	}
	return Reservation{}, false
}

// stands says whether it is still that claim which is held for a gang.
func (h *Reservations) stands(key types.NamespacedName, claim Reservation) bool {
	one, ok := h.Get(key)
	return ok && !one.Reserved && one.since.Equal(claim.since)
}

// keep holds room for a gang, in the place of what was held.
func (h *Reservations) keep(key types.NamespacedName, one Reservation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(key)
	h.of[key] = &one
	for _, name := range one.nodes() {
		h.byNode[name] = append(h.byNode[name], key)
	}
}

// drop ends what is held for a gang and returns single pods that may go in now.
func (h *Reservations) drop(key types.NamespacedName) (free []*v1.Pod, was bool) {
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

func (h *Reservations) remove(key types.NamespacedName) bool {
	one := h.of[key]
	if one == nil {
		return false
	}
	delete(h.of, key)
	for _, name := range one.nodes() {
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

// keys lists the gangs for which room is held.
func (h *Reservations) keys() map[types.NamespacedName]Reservation {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[types.NamespacedName]Reservation, len(h.of))
	for key, one := range h.of {
		all[key] = *one
	}
	return all
}

// Against lists the room that a gang must keep out of.
func (h *Reservations) Against(key types.NamespacedName, priority int32, end time.Time) []topology.Taking {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []topology.Taking
	for other, one := range h.of {
		if other != key && one.Binds(priority, end) {
			all = append(all, one.seats...)
		}
	}
	return all
}

// Any says whether any room is held at all.
func (h *Reservations) Any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.of) > 0
}

// on is how much of a node is held against a pod, and for whom.
func (h *Reservations) on(node string, priority int32, end time.Time) (held topology.Resources, whom types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range h.byNode[node] {
		one := h.of[key]
		if !one.Binds(priority, end) {
			continue
		}
		for _, s := range one.seats {
			if s.Node != node {
				continue
			}
			if held == nil {
				held, whom = topology.Resources{}, key
			}
			for what, v := range s.Hold.What {
				held[what] += v
			}
		}
	}
	return held, whom
}

func (h *Reservations) wait(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept) < mostKept {
		h.kept[pod.UID] = pod
	}
}

// KeepOff refuses a single pod the room on a node that is held for a gang.
func (p *Preemptor) KeepOff(pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.config.Planner.Attendant(pod) {
		return nil
	}
	held, whom := p.reservations.on(node.Node().Name, corev1helpers.PodPriority(pod), settings.WouldEnd(pod, time.Now()))
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
			p.reservations.wait(pod)
			return fwk.NewStatus(fwk.Unschedulable, "node's room is held for gang "+whom.String())
		}
	}
	return nil
}

// letIn ends what is held for a gang, and has those tried again that were kept out: aside, for it may be a scheduling cycle
// that ends it.
func (p *Preemptor) letIn(logger klog.Logger, key types.NamespacedName) {
	free, was := p.reservations.drop(key)
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

// idles notes whether a gang could not use what is held for it now, and says for how long that has been so.
func (h *Reservations) idles(key types.NamespacedName, idle bool, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of[key]
	switch {
	case one == nil:
		return 0
	case !idle:
		one.idle = time.Time{}
		return 0
	case one.idle.IsZero():
		one.idle = now
	}
	return now.Sub(one.idle)
}

// Lapse ends what is held for gangs that are gone or placed, claims whose time is over, and reservations of gangs that lack
// members for long: nobody else may go there, and nobody comes.
func (p *Preemptor) Lapse(logger klog.Logger, now time.Time) {
	for key, h := range p.reservations.keys() {
		switch {
		case !p.config.Gangs.Wants(key):
		case !h.Reserved && now.After(h.until):
			logger.Info("Room was held for a gang and not used in time", "gang", key, "room", h.Words())
		case h.Reserved && p.reservations.idles(key, !p.config.Gangs.Able(key), now) >= p.config.Args.FormingPatience.Duration:
			logger.Info("Room was reserved for a gang that lacks members", "gang", key, "room", h.Words())
		default:
			continue
		}
		p.letIn(logger, key)
		p.config.Wake(logger, key)
	}
}
