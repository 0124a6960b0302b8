package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/groups"
)

// group is one gang. A member moves from pending through planned and reserved to bound:
//
//	pending ──plan──▶ planned ──Reserve──▶ reserved ──bound──▶ bound
//	   ▲                 │ plan given up      │ Unreserve
//	   └─────────────────┴────────────────────┘
type group struct {
	key     types.NamespacedName
	members map[types.UID]*member
	// closed is the ledger's: members that want whole nodes are entered there with theirs.
	closed *closings
	// counts of members by state, of gated ones, and of those that are to be placed and not in the queue yet;
	// slots counts members by slot, unslotted those without one; lead is the pending member of the lowest
	// slot, nil: to be found again. All follow from members and are kept by put, enter, set and drop alone.
	counts    [bound + 1]int
	gated     int
	outside   int
	slots     map[int]int
	unslotted int
	lead      *member
	// size is how many must exist, as the gang's terms say; sizeErr is set where they say nothing usable.
	size    int
	sizeErr error
	terms   groups.Terms
	// told is what a pod heard that was refused for what the gang's terms say; nobody heard anything since.
	told string
	// said is the refusal that an event told last.
	said said
	// foreign: another API than ours says who is in the gang.
	foreign bool
	// noClaims: nobody makes resource claims here.
	noClaims bool
	// ready counts members by task that no gate holds.
	ready map[string]int
	// leaving are members that were told to end and still do; ended are pods that ended well, which nobody
	// makes again. Their slots stand in them.
	leaving map[types.UID]gang.Gap
	ended   map[types.UID]slot
	// version counts changes of who is there; calm is what it was at the last inspection, asked what it was
	// when the API server last said who ended well.
	version, calm, asked int
	// open says that a plan stands which not all members have followed, since opened.
	open   bool
	opened time.Time
	// fresh says that the gang never was whole; only then is it taken back when it cannot be completed.
	// settled says that it was seen whole. forming are a fresh gang's members with a node, oldest first;
	// youngest is when the last of the pods that it was first planned with was created.
	fresh, settled bool
	forming        []*v1.Pod
	youngest       time.Time
	// repaired: a plan was opened after members ended well.
	repaired bool
	// since is when all that is needed to place the missing members came to be there; zero once all have a node.
	since time.Time
	// lifted: gates of others were seen to go.
	lifted bool
	// gapSince is since when a forming gang was seen to lack members.
	gapSince time.Time
	// givenUp counts plans in a row that could not be followed.
	givenUp int
	// refusal is the last answer, if it was one; nudged is when the leader was last sent past its backoff.
	refusal *gang.Refusal
	nudged  time.Time
}

type member struct {
	pod  *v1.Pod
	slot slot
	// role is what the pod looks like to filters; see roleOf. task is its task in the words of Volcano.
	role, task string
	// gated: the pod has scheduling gates of others, or claims that are yet to be made; whole: it wants its node whole.
	gated, whole bool
	// queued: the scheduling queue knows the pod. Before, it would forget what is nominated for it.
	queued bool
	state  state
	// node is the planned, reserved or bound one.
	node string
}

// slot is a pod's place in its gang, where its controller gives it one; where it is not known to be the pod's own, it
// says the order alone.
type slot struct {
	n     int
	known bool
}

func slotOf(pod *v1.Pod) slot {
	n, ok := membership.GroupSlot(pod)
	return slot{n: n, known: ok}
}

type state int

const (
	// pending: no node.
	pending state = iota
	// planned: the open plan names a node.
	planned
	// reserved: the scheduler has assumed the pod on the node.
	reserved
	// bound: the API server says so.
	bound
)

func newGroup(key types.NamespacedName, closed *closings) *group {
	return &group{key: key, closed: closed, members: map[types.UID]*member{}, slots: map[int]int{}, ready: map[string]int{}, leaving: map[types.UID]gang.Gap{}, ended: map[types.UID]slot{}, asked: -1}
}

// agree takes the gang's terms over.
func (g *group) agree(t groups.Terms, err error) { g.terms, g.size, g.sizeErr = t, t.Size, err }

// put adds a member or brings what is known of it up to date.
func (g *group) put(pod *v1.Pod) *member {
	m := g.members[pod.UID]
	if m == nil {
		m = &member{role: roleOf(pod), slot: slotOf(pod), task: membership.TaskOf(pod)}
		g.members[pod.UID] = m
		g.counts[pending]++
		g.outside++
		g.hold(m.slot, 1)
		g.lead = nil
		g.version++
	} else if m.gated {
		g.gated--
		g.lifted = g.lifted || len(pod.Spec.SchedulingGates) == 0
	} else {
		g.ready[m.task]--
	}
	gated := len(pod.Spec.SchedulingGates) > 0 || g.awaitsClaims(pod)
	if gated != m.gated {
		g.lead = nil
	}
	m.pod, m.gated, m.whole = pod, gated, closes(pod)
	if m.node != "" { // else what was known of the pod holds until it is set on a node
		g.close(m)
	}
	if m.gated {
		g.gated++
	} else {
		g.ready[m.task]++
	}
	return m
}

// awaitsClaims says whether a pod waits for claims. Where nobody makes them it is refused instead.
func (g *group) awaitsClaims(pod *v1.Pod) bool { return !g.noClaims && awaitsClaims(pod) }

// enter notes that a member is in the queue, or needs it no more.
func (g *group) enter(m *member) {
	if !m.queued {
		m.queued = true
		g.outside--
	}
}

func (g *group) hold(s slot, n int) {
	if !s.known {
		g.unslotted += n
		return
	}
	if g.slots[s.n] += n; g.slots[s.n] == 0 {
		delete(g.slots, s.n)
	}
}

func (g *group) set(m *member, s state, node string) {
	g.counts[m.state]--
	g.counts[s]++
	m.state, m.node = s, node
	g.close(m)
	if s == pending || m == g.lead {
		g.lead = nil
	}
}

func (g *group) drop(uid types.UID) {
	m := g.members[uid]
	g.counts[m.state]--
	if m.whole && m.node != "" {
		g.closed.stray(uid) // until the pod is gone
	}
	if m.gated {
		g.gated--
	} else {
		g.ready[m.task]--
	}
	g.enter(m)
	g.hold(m.slot, -1)
	if m == g.lead {
		g.lead = nil
	}
	g.version++
	delete(g.members, uid)
}

// close enters a member's node as closed, if it has one and wants it whole.
func (g *group) close(m *member) {
	if m.whole && m.node != "" {
		g.closed.put(m.pod.UID, seat{node: m.node, gang: g.key, planned: m.state == planned})
	} else {
		g.closed.forget(m.pod.UID)
	}
}

func (g *group) unform(uid types.UID) {
	g.forming = slices.DeleteFunc(g.forming, func(p *v1.Pod) bool { return p.UID == uid })
}

// present is how many slots are held. Two pods in one slot, one of which is about to go, are one.
func (g *group) present() int { return len(g.slots) + g.unslotted }

// over is how many slots need nobody any more, because a pod there ended well.
func (g *group) over() int {
	n := 0
	for _, s := range g.ended {
		if !s.known || g.slots[s.n] == 0 {
			n++
		}
	}
	return n
}

// staffed says whether all members exist, complete whether they can be planned as well: none is held back by
// others, and the queue knows all.
func (g *group) staffed() bool  { return g.size > 0 && g.present()+g.over() >= g.size }
func (g *group) complete() bool { return g.able() && g.queuedAll() }

// able says whether as many members as are needed exist and are not held back by others.
func (g *group) able() bool {
	if g.terms.Min == 0 {
		return g.staffed() && g.gated == 0
	}
	for task, n := range g.terms.Tasks {
		if g.ready[task] < n {
			return false
		}
	}
	return g.size > 0 && g.present()-g.gated+g.over() >= g.size
}

// queuedAll says whether the queue knows all members that it may be asked for.
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

// manned says whether as many as the gang can do with have nodes already, where it can do with fewer than all: the others
// only join.
func (g *group) manned() bool {
	return g.terms.Min > 0 && g.counts[reserved]+g.counts[bound]+g.over() >= g.terms.Min
}

// whole says whether all members exist and are bound, or as many as are needed and no other is on its way.
func (g *group) whole() bool {
	if g.terms.Min == 0 {
		return g.present()+g.over() >= g.size && g.counts[bound] == len(g.members)
	}
	if !g.manned() || g.counts[planned]+g.counts[reserved] > 0 {
		return false
	}
	if len(g.terms.Tasks) == 0 {
		return true
	}
	have := map[string]int{}
	for _, m := range g.members {
		have[m.task] += flag(m.state == bound)
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
	r := gang.Incomplete(gang.Census{Size: g.size, Exist: g.present() - g.gated, Bound: g.counts[bound], Ended: g.over(), Gaps: g.gaps()})
	claimless := 0
	for _, m := range g.members {
		claimless += flag(m.gated && g.awaitsClaims(m.pod))
	}
	if claimless > 0 {
		r.Message += fmt.Sprintf("; %d more wait for kube-controller-manager to make their resource claims", claimless)
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
		if !s.known {
			return nil
		}
		held[s.n] = true
	}
	leaving := map[int]gang.Gap{}
	for _, l := range g.leaving {
		if have, ok := leaving[l.Slot]; !ok || l.Leaving < have.Leaving {
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
func (g *group) first() *member {
	if g.lead == nil && g.counts[pending] > 0 {
		for _, m := range g.members {
			if m.state == pending && !m.gated && (g.lead == nil || bySlot(*m, *g.lead) < 0) {
				g.lead = m
			}
		}
	}
	return g.lead
}

// settle closes the plan once all have followed it, and ends forming once all are bound.
func (g *group) settle() {
	if g.counts[planned] == 0 {
		g.open = false
	}
	if g.whole() {
		g.fresh, g.settled, g.forming, g.givenUp, g.refusal = false, true, nil, 0, nil
	}
}

// wanting says whether there are members to be placed, and all that is needed to do so.
func (g *group) wanting() bool { return g.complete() && g.first() != nil }

// wants is wanting, for one that was not before.
func (g *group) wants() bool {
	if !g.wanting() {
		return false
	}
	g.since = time.Now()
	if made := g.newest(); !g.lifted && g.since.Sub(made) > foundLate && !made.IsZero() {
		g.since = made
	}
	return true
}

// foundLate is far more than it takes to hear of a new pod: a gang whose newest is older was complete before this replica
// began, and has waited since that pod was made. What is seen to happen has the replica's own time: the API's has whole seconds.
const foundLate = 10 * time.Second

// newest is when the last of the gang's pods was created.
func (g *group) newest() time.Time {
	var last time.Time
	for _, m := range g.members {
		if created := m.pod.CreationTimestamp.Time; created.After(last) {
			last = created
		}
	}
	return last
}

// nodesBySlot lists the nodes of members that have one.
func (g *group) nodesBySlot() []string {
	members := make([]member, 0, len(g.members))
	for _, m := range g.members {
		if m.node != "" {
			members = append(members, *m)
		}
	}
	slices.SortFunc(members, bySlot)
	nodes := make([]string, len(members))
	for i, m := range members {
		nodes[i] = m.node
	}
	return nodes
}

func bySlot(a, b member) int {
	return cmp.Or(cmp.Compare(a.slot.n, b.slot.n), cmp.Compare(a.pod.Name, b.pod.Name))
}
