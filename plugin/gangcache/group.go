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
	// waiting and released are the cache's: groups with pending members are entered there, and nodes that a plan gave back.
	waiting  map[types.NamespacedName]*group
	released *[]string
	// exclusive is the cache's: members that want whole nodes are entered there with theirs.
	exclusive *exclusive
	// counts of members by state, of gated ones, and of those that are to be placed and not in the queue yet;
	// slots counts members by slot, unslotted those without one; lead is the pending member of the lowest
	// slot, nil: to be found again. All follow from members and are kept by put, enter, set and drop alone.
	counts    [Bound + 1]int
	gated     int
	outside   int
	slots     map[int]int
	unslotted int
	lead      *Member
	// oldest is when the first of the pods was created; zero: to be found again.
	oldest time.Time
	// size is how many must exist, as the gang's terms say; sizeErr is set where they say nothing usable.
	size    int
	sizeErr error
	terms   Terms
	// lastNotice is the refusal that an event told last.
	lastNotice notice
	// ready counts members by task that no gate holds.
	ready map[string]int
	// terminating are members that were told to end and still do; ended are pods that ended well, which nobody
	// makes again. Their slots stand in them.
	terminating map[types.UID]gang.Gap
	ended       map[types.UID]Slot
	// version counts changes of who is there; calm is what it was at the last inspection, asked what it was
	// when the API server last said who ended well.
	version, calm, asked int
	// phase is changed by transition alone. Where no plan stands refusal is why, as the last plan said, and notified, as a pod was
	// refused for what the gang's terms say; empty since a pod was not.
	phase    phase
	refusal  *gang.Refusal
	notified string
	// opened is when the last plan was opened, and endedBefore how many members had ended well by then.
	opened      time.Time
	endedBefore int
	// initialPlacement are the members with a node of a gang that never was whole, oldest first; youngest is when the last of the
	// pods that it was first planned with was created, and stamp what their bindings carry.
	initialPlacement []*v1.Pod
	youngest         time.Time
	stamp            string
	// since is when all that is needed to place the missing members came to be there; zero once all have a node.
	since time.Time
	// lifted counts the members of which gates of others were seen to go.
	lifted int
	// gapSince is since when a gang in its initial placement was seen to lack members.
	gapSince time.Time
	// givenUp counts plans in a row that could not be followed.
	givenUp int
	// nudged is when the leader was last sent past its backoff.
	nudged time.Time
}

// Member is a pod of a gang.
type Member struct {
	Pod  *v1.Pod
	Slot Slot
	// Role is what the pod looks like to filters; see Config. Task is its task in the words of Volcano.
	Role, Task string
	State      State
	// Node is the planned, reserved or bound one; ours: this scheduler reserved it.
	Node string
	ours bool
	// gated: the pod has scheduling gates of others, or claims that are yet to be created; exclusive: it wants its node
	// exclusively.
	gated, exclusive bool
	// queued: the scheduling queue knows the pod. Before that, it would drop a nomination.
	queued bool
}

// GangOf is the gang that a pod is in, if the scheduler of that name places it.
func GangOf(pod *v1.Pod, scheduler string) (types.NamespacedName, bool) {
	key, ok := membership.GroupOf(pod)
	return key, ok && pod.Spec.SchedulerName == scheduler
}

// Slot is a pod's place in its gang, where its controller gives it one; where it is not known to be the pod's own, it
// says the order alone.
type Slot struct {
	N     int
	Known bool
}

// SlotOf reads a pod's slot.
func SlotOf(pod *v1.Pod) Slot {
	n, ok := membership.GroupSlot(pod)
	return Slot{N: n, Known: ok}
}

// State is how far a member is on its way to its node.
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

// external reports whether another API than ours says who is in the gang.
func (g *group) external() bool {
	_, _, external := membership.External(g.key)
	return external
}

// setTerms takes the gang's terms over.
func (g *group) setTerms(t Terms, err error) { g.terms, g.size, g.sizeErr = t, t.Size, err }

// put adds a member or brings what is known of it up to date.
func (g *group) put(pod *v1.Pod) *Member {
	m := g.members[pod.UID]
	if m == nil {
		m = &Member{Role: g.config.Role(pod), Slot: SlotOf(pod), Task: membership.TaskOf(pod)}
		g.members[pod.UID] = m
		g.tally(Pending, 1)
		g.oldest = time.Time{}
		g.outside++
		g.countSlot(m.Slot, 1)
		g.lead = nil
		g.version++
	} else if m.gated {
		g.gated--
		g.lifted += flag(len(pod.Spec.SchedulingGates) == 0)
	} else {
		g.ready[m.Task]--
	}
	gated := len(pod.Spec.SchedulingGates) > 0 || g.config.AwaitsClaims(pod)
	if gated != m.gated {
		g.lead = nil
	}
	m.Pod, m.gated, m.exclusive = pod, gated, closes(pod)
	if m.Node != "" { // else what was known of the pod holds until it is set on a node
		g.close(m)
	}
	if m.gated {
		g.gated++
	} else {
		g.ready[m.Task]++
	}
	return m
}

// enter notes that a member is in the queue, or needs it no more.
func (g *group) enter(m *Member) {
	if !m.queued {
		m.queued = true
		g.outside--
	}
}

// release notes that a member that is on its way to its node does not go there; of one that is bound the node's pods show it.
func (g *group) release(m *Member) {
	if m.State == Planned || m.State == Reserved {
		*g.released = append(*g.released, m.Node)
	}
}

// tally counts a member in a state, and enters the group where it waits.
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
	if m == g.lead {
		g.lead = nil
	}
	g.version++
	delete(g.members, uid)
}

// close enters a member's node as exclusive, if it has one and wants it exclusively.
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

// present returns how many slots have a pod. Two pods in one slot, one of which terminates, count as one.
func (g *group) present() int { return len(g.slots) + g.unslotted }

// over returns how many slots need no pod any more, because one there succeeded.
func (g *group) over() int {
	n, slots := 0, map[int]bool{}
	for _, s := range g.ended {
		if !s.Known {
			n++
		} else if g.slots[s.N] == 0 {
			slots[s.N] = true // two pods of one slot are one place
		}
	}
	return n + len(slots)
}

// allExist reports whether all members exist; complete whether they can be planned as well: none is held back by
// others, and the queue knows all.
func (g *group) allExist() bool { return g.size > 0 && g.present()+g.over() >= g.size }
func (g *group) complete() bool { return g.schedulable() && g.queuedAll() }

// schedulable reports whether as many members as are needed exist and are not held back by others.
func (g *group) schedulable() bool {
	if g.terms.Min == 0 {
		return g.allExist() && g.gated == 0
	}
	for task, n := range g.terms.Tasks {
		if g.ready[task] < n {
			return false
		}
	}
	return g.size > 0 && g.present()-g.gated+g.over() >= g.size
}

// queuedAll reports whether the queue knows all members that it may be asked for.
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

// minimumPlaced reports whether the minimum of an elastic gang has nodes already: the other members only join.
func (g *group) minimumPlaced() bool {
	return g.terms.Min > 0 && g.counts[Reserved]+g.counts[Bound]+g.over() >= g.terms.Min
}

// allBound reports whether all members exist and are bound, or as many as are needed and no other is on its way.
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

// gaps lists the slots that nobody holds, where all pods have one.
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

// first is the pending member with the lowest slot that no gate holds. It is asked for at every event: it looks at all members only
// where it is not known who that is.
func (g *group) first() *Member {
	if g.lead == nil && g.counts[Pending] > 0 {
		for _, m := range g.members {
			if m.State == Pending && !m.gated && (g.lead == nil || BySlot(*m, *g.lead) < 0) {
				g.lead = m
			}
		}
	}
	return g.lead
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

// wanting reports whether there are members to be placed, and all that is needed to do so.
func (g *group) wanting() bool { return g.complete() && g.first() != nil }

// markWaiting notes that the gang waits from now on, and reports that, where it is wanting and was not before.
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

// foundLate is far longer than it takes to see a new pod: a gang whose newest pod is older was complete before this
// replica started, and has waited since that pod was created. Otherwise the replica's own clock counts: the API's has
// whole seconds.
const foundLate = 10 * time.Second

// newest is when the last of the gang's pods was created.
func (g *group) newest() time.Time {
	var last time.Time
	for _, m := range g.members {
		if created := m.Pod.CreationTimestamp.Time; created.After(last) {
			last = created
		}
	}
	return last
}

// nodesBySlot lists the nodes of members that have one.
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

// BySlot orders members.
func BySlot(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Slot.N, b.Slot.N), cmp.Compare(a.Pod.Name, b.Pod.Name))
}

// placedStatus is the status of a gang that is whole.
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
