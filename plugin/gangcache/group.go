package gangcache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/membership"
)

// group is one gang. A member moves from pending through planned and reserved to bound:
//
//	pending ──plan──▶ planned ──Reserve──▶ reserved ──bound──▶ bound
//	   ▲                 │ plan given up      │ Unreserve
//	   └─────────────────┴────────────────────┘
type group struct {
	key     types.NamespacedName
	members map[types.UID]*Member
	config  *Config
	// waiting and released belong to the cache: the groups with pending members, and nodes on which plans released room.
	waiting  map[types.NamespacedName]*group
	released *[]string
	// exclusive belongs to the cache: the nodes that members use exclusively.
	exclusive *exclusive
	// counts of members by state, of gated ones, and of those to be placed and not queued yet; slots counts members by slot, unslotted
	// those without one; lead is the pending member that leads, nil: must be computed. All follow from members; only put, enter,
	// set and drop change them.
	counts    [Bound + 1]int
	gated     int
	outside   int
	slots     map[int]int
	unslotted int
	lead      *Member
	// blocks is what is known of the blocks of a gang with Terms.Unit; nil: must be computed.
	blocks *blocks
	// oldest is when the first of the pods was created; zero: must be computed.
	oldest time.Time
	// size is how many members must exist, from the gang's terms; sizeErr is set if these are invalid.
	size    int
	sizeErr error
	terms   Terms
	// lastNotice is the refusal in the newest event.
	lastNotice notice
	// ready is, by task, the number of members that are not gated.
	ready map[string]int
	// terminating are members being deleted; ended are pods that succeeded and that no controller re-creates. The values have their slots.
	terminating map[types.UID]gang.Gap
	ended       map[types.UID]Slot
	// version counts changes of the set of members; calm is its value at the last inspection, asked at the last query to the API server for
	// members that succeeded.
	version, calm, asked int
	// phase is changed by transition alone. While no plan is open, refusal is the last plan's, and notified the last one for invalid terms;
	// empty: none since.
	phase    phase
	refusal  *gang.Refusal
	notified string
	// opened is when the last plan was opened, endedBefore how many members had succeeded by then.
	opened      time.Time
	endedBefore int
	// initialPlacement are the members with a node of a gang that was never complete, oldest first; youngest is the newest creation time of
	// the pods in its first plan, stamp the stamp in their bindings.
	initialPlacement []*v1.Pod
	youngest         time.Time
	stamp            string
	// since is when all that is needed to place the pending members existed; zero: all have a node.
	since time.Time
	// lifted counts the members whose foreign scheduling gates were removed.
	lifted int
	// gapSince is when a gang in its initial placement was first seen to lack members.
	gapSince time.Time
	// givenUp counts plans in a row that members could not follow.
	givenUp int
	// nudged is when the leader last skipped its backoff.
	nudged time.Time
}

// Member is a pod of a gang.
type Member struct {
	Pod  *v1.Pod
	Slot Slot
	// Role is Config.Role of the pod. Task is its task in Volcano's sense.
	Role, Task string
	State      State
	// Node is the planned, reserved or bound node; ours: this scheduler reserved it.
	Node string
	ours bool
	// gated: the pod has foreign scheduling gates, or claims that are still to be created; exclusive: it uses its node exclusively.
	gated, exclusive bool
	// queued: the scheduling queue has the pod. Until then it would drop a nomination.
	queued bool
}

// GangOf returns the gang of a pod, if the named scheduler places it.
func GangOf(pod *v1.Pod, scheduler string) (types.NamespacedName, bool) {
	key, ok := membership.GroupOf(pod)
	return key, ok && pod.Spec.SchedulerName == scheduler
}

// Slot is a pod's place in its gang, if its controller gives it one; if the slot is not known to be the pod's own, it only orders pods.
type Slot struct {
	N     int
	Known bool
}

// SlotOf reads a pod's slot.
func SlotOf(pod *v1.Pod) Slot {
	n, ok := membership.GroupSlot(pod)
	return Slot{N: n, Known: ok}
}

// State is a member's progress towards its node.
type State int

const (
	// Pending: no node.
	Pending State = iota
	// Planned: the open plan names a node.
	Planned
	// Reserved: the scheduler has assumed the pod on the node.
	Reserved
	// Bound: the API server has the binding.
	Bound
)

func (c *Cache) newGroup(key types.NamespacedName) *group {
	return &group{
		key:         key,
		config:      &c.config,
		waiting:     c.waiting,
		released:    &c.released,
		exclusive:   c.exclusive,
		members:     map[types.UID]*Member{},
		slots:       map[int]int{},
		ready:       map[string]int{},
		terminating: map[types.UID]gang.Gap{},
		ended:       map[types.UID]Slot{},
		asked:       -1,
	}
}

// external reports whether another API defines the gang.
func (g *group) external() bool {
	_, _, external := membership.External(g.key)
	return external
}

// setTerms sets the gang's terms.
func (g *group) setTerms(t Terms, err error) {
	if (t.Min > 0) != (g.terms.Min > 0) || t.Unit != g.terms.Unit {
		g.lead = nil // byLead compares by them
	}
	g.terms, g.size, g.sizeErr, g.blocks = t, t.Size, err, nil
}

// put adds or updates a member.
func (g *group) put(pod *v1.Pod) *Member {
	m := g.members[pod.UID]
	known := m != nil
	if !known {
		m = &Member{Role: g.config.Role(pod), Slot: SlotOf(pod), Task: membership.TaskOf(pod)}
		g.members[pod.UID] = m
		g.tally(Pending, 1)
		g.oldest = time.Time{}
		g.outside++
		g.countSlot(m.Slot, 1)
		if g.blocks = nil; g.terms.Unit > 1 {
			g.lead = nil // the blocks decide
		}
		g.version++
	} else if m.gated {
		g.gated--
		g.lifted += flag(len(pod.Spec.SchedulingGates) == 0)
	} else {
		g.ready[m.Task]--
	}
	gated := len(pod.Spec.SchedulingGates) > 0 || g.config.AwaitsClaims(pod)
	if known && gated != m.gated {
		g.lead, g.blocks = nil, nil
	}
	m.Pod, m.gated, m.exclusive = pod, gated, closes(pod)
	if !known && !gated && g.lead != nil && g.byLead(*m, *g.lead) < 0 {
		g.lead = m // a search among all members for each new one would make the work for a gang grow with the square of its size
	}
	if m.Node != "" { // else the former state holds until it is set on a node
		g.close(m)
	}
	if m.gated {
		g.gated++
	} else {
		g.ready[m.Task]++
	}
	return m
}

// enter records that a member is queued, or need not be any more.
func (g *group) enter(m *Member) {
	if !m.queued {
		m.queued = true
		g.outside--
	}
}

// release records that a member does not go to its planned node; that of a bound member the node's pods show.
func (g *group) release(m *Member) {
	if m.State == Planned || m.State == Reserved {
		*g.released = append(*g.released, m.Node)
	}
}

// tally counts a member in a state, and updates the cache's waiting groups.
func (g *group) tally(s State, by int) {
	g.counts[s] += by
	if g.counts[Pending] > 0 {
		g.waiting[g.key] = g
	} else {
		delete(g.waiting, g.key)
	}
}

func (g *group) countSlot(s Slot, n int) {
	if !s.Known {
		g.unslotted += n
		return
	}
	if g.slots[s.N] += n; g.slots[s.N] == 0 {
		delete(g.slots, s.N)
	}
}

func (g *group) set(m *Member, s State, node string) {
	g.tally(m.State, -1)
	g.tally(s, 1)
	if m.Node != node {
		g.release(m)
	}
	if m.State != Reserved || s != Bound {
		g.blocks = nil
	}
	m.State, m.Node, m.ours = s, node, s == Reserved || s == Bound && m.ours && m.Node == node
	g.close(m)
	if s == Pending || m == g.lead {
		g.lead = nil
	}
}

func (g *group) drop(uid types.UID) {
	m := g.members[uid]
	g.tally(m.State, -1)
	g.oldest = time.Time{}
	g.release(m)
	if m.exclusive && m.Node != "" {
		g.exclusive.stray(uid) // until the pod is gone
	}
	if m.gated {
		g.gated--
	} else {
		g.ready[m.Task]--
	}
	g.enter(m)
	g.countSlot(m.Slot, -1)
	if m == g.lead || g.terms.Unit > 1 { // the block of the leader may lack it
		g.lead = nil
	}
	g.blocks = nil
	g.version++
	delete(g.members, uid)
}

// close records a member's node as exclusive, if it has one and uses it exclusively.
func (g *group) close(m *Member) {
	if m.exclusive && m.Node != "" {
		g.exclusive.put(m.Pod.UID, nodeUse{node: m.Node, gang: g.key, planned: m.State == Planned})
	} else {
		g.exclusive.forget(m.Pod.UID)
	}
}

func (g *group) leaveInitial(uid types.UID) {
	g.initialPlacement = slices.DeleteFunc(g.initialPlacement, func(p *v1.Pod) bool { return p.UID == uid })
}

// present returns the number of slots with a pod. Two pods in one slot, one of which terminates, count once.
func (g *group) present() int { return len(g.slots) + g.unslotted }

// over returns the number of slots in which a pod succeeded.
func (g *group) over() int {
	n, slots := 0, map[int]bool{}
	for _, s := range g.ended {
		if !s.Known {
			n++
		} else if g.slots[s.N] == 0 {
			slots[s.N] = true // two pods of one slot count once
		}
	}
	return n + len(slots)
}

// mustExist is how many members must exist for any to be placed: all, so that they are placed together if they fit. In an elastic gang of
// which some have nodes it is the minimum.
func (g *group) mustExist() int {
	if g.terms.Min > 0 && !g.phase.initial() && g.counts[Reserved]+g.counts[Bound] > 0 {
		return min(g.size, g.terms.Min)
	}
	return g.size
}

// allExist reports whether all members exist. complete reports whether those exist that must, are not gated, and are all queued.
func (g *group) allExist() bool { return g.size > 0 && g.present()+g.over() >= g.size }
func (g *group) complete() bool { return g.schedulable() && g.queuedAll() }

// schedulable reports whether enough members exist and are not gated.
func (g *group) schedulable() bool {
	if g.terms.Min == 0 {
		return g.allExist() && g.gated == 0
	}
	for task, n := range g.terms.Tasks {
		if g.ready[task] < n {
			return false
		}
	}
	must := g.mustExist()
	return g.size > 0 && g.present()-g.gated+g.over() >= must && (g.terms.Unit <= 1 || g.inBlocks().usable >= must)
}

// queuedAll reports whether the queue has all members that are to be placed.
func (g *group) queuedAll() bool {
	if g.outside == 0 || g.gated == 0 {
		return g.outside == 0
	}
	for _, m := range g.members {
		if !m.queued && !m.gated {
			return false
		}
	}
	return true
}

// allBound reports whether all members exist and are bound, or enough are and no other is on its way.
func (g *group) allBound() bool {
	if g.terms.Min == 0 {
		return g.present()+g.over() >= g.size && g.counts[Bound] == len(g.members)
	}
	if !g.minimumPlaced() || g.counts[Planned]+g.counts[Reserved] > 0 {
		return false
	}
	if len(g.terms.Tasks) == 0 {
		return true
	}
	have := map[string]int{}
	for _, m := range g.members {
		have[m.Task] += flag(m.State == Bound)
	}
	for task, n := range g.terms.Tasks {
		if have[task]+g.over() < n {
			return false
		}
	}
	return true
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (g *group) incomplete() gang.Refusal {
	r := gang.Incomplete(
		gang.MemberCounts{Size: g.size, Exist: g.present() - g.gated, Bound: g.counts[Bound], Ended: g.over(), Gaps: g.gaps()},
	)
	claimless := 0
	for _, m := range g.members {
		claimless += flag(m.gated && g.config.AwaitsClaims(m.Pod))
	}
	if claimless > 0 {
		r.Message += fmt.Sprintf("; %d more wait for kube-controller-manager to create their resource claims", claimless)
	}
	return r
}

// gaps lists the slots without a pod, if all pods have a slot.
func (g *group) gaps() []gang.Gap {
	if g.unslotted > 0 {
		return nil
	}
	held := map[int]bool{}
	for _, s := range g.ended {
		if !s.Known {
			return nil
		}
		held[s.N] = true
	}
	leaving := map[int]gang.Gap{}
	for _, l := range g.terminating {
		if have, ok := leaving[l.Slot]; !ok || l.Terminating < have.Terminating {
			leaving[l.Slot] = l
		}
	}
	var gaps []gang.Gap
	for s := range g.size {
		if held[s] || g.slots[s] > 0 {
			continue
		}
		gap := leaving[s]
		gap.Slot = s
		gaps = append(gaps, gap)
	}
	return gaps
}

// first returns the pending member that leads and is not gated: the one with the lowest slot, or of a gang with a minimum the oldest one.
// It is called at every event and searches only if the cached result is invalid.
func (g *group) first() *Member {
	if g.lead == nil && g.counts[Pending] > 0 {
		for _, m := range g.members {
			if m.State == Pending && !m.gated && !g.incompleteBlock(m) && (g.lead == nil || g.byLead(*m, *g.lead) < 0) {
				g.lead = m
			}
		}
	}
	return g.lead
}

// byLead compares members by which of them leads.
func (g *group) byLead(a, b Member) int {
	age := 0
	if g.terms.Min > 0 {
		age = g.waitsSince(&a).Compare(g.waitsSince(&b))
	}
	return cmp.Or(age, BySlot(a, b))
}

// settle closes the plan once all members have followed it, and ends the initial placement once all are bound.
func (g *group) settle() {
	if g.counts[Planned] == 0 {
		g.transition(planEnded)
	}
	if g.allBound() {
		g.transition(completed)
	}
}

// wanting reports whether members are to be placed and all that is needed for that exists.
func (g *group) wanting() bool { return g.complete() && g.first() != nil }

// markWaiting records since when the gang waits, if it is wanting and was not before, and reports that.
func (g *group) markWaiting(was bool) (began bool) {
	if was || !g.wanting() {
		return false
	}
	g.since = time.Now()
	if made := g.newest(); g.lifted == 0 && g.since.Sub(made) > foundLate && !made.IsZero() {
		g.since = made
	}
	return true
}

// foundLate is far longer than a new pod takes to be seen. A gang whose newest pod is older was complete before this replica started, and
// has waited since that pod was created. For others the replica's own clock counts: the API's times are whole seconds.
const foundLate = 10 * time.Second

// newest is the newest creation time of the gang's pods.
func (g *group) newest() time.Time {
	var last time.Time
	for _, m := range g.members {
		if created := m.Pod.CreationTimestamp.Time; created.After(last) {
			last = created
		}
	}
	return last
}

// nodesBySlot returns the nodes of members that have one, by slot.
func (g *group) nodesBySlot() []string {
	members := make([]Member, 0, len(g.members))
	for _, m := range g.members {
		if m.Node != "" {
			members = append(members, *m)
		}
	}
	slices.SortFunc(members, BySlot)
	nodes := make([]string, len(members))
	for i, m := range members {
		nodes[i] = m.Node
	}
	return nodes
}

// BySlot compares members by slot, then by name.
func BySlot(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Slot.N, b.Slot.N), cmp.Compare(a.Pod.Name, b.Pod.Name))
}

// placedStatus is the status of a complete gang.
func (g *group) placedStatus() v1alpha1.PlacementStatus {
	s := status.Placed(g.nodesBySlot())
	if more := len(g.members) - len(s.Nodes); more > 0 {
		s.Message = fmt.Sprintf("%d of %d pods are on nodes, %d are needed", len(s.Nodes), len(g.members), g.terms.Min)
		if g.refusal != nil {
			s.Message += ": " + g.refusal.Message
		}
	}
	return s
}
