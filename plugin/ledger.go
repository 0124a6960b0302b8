package plugin

import (
	"cmp"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/translate"
)

// ledger is what is known of each gang. All of it but the open plans follows from the pods, so that a
// restarted scheduler knows it again as soon as it has seen them.
type ledger struct {
	mu sync.Mutex
	// groups by gang; one exists while a member does. Guarded by mu, with all that is in it.
	groups map[types.NamespacedName]*group
	// doomed are pods that are being taken back and count no more.
	doomed map[types.UID]bool
}

// group is one gang. A member moves from pending through planned and reserved to bound:
//
//	pending ──plan──▶ planned ──Reserve──▶ reserved ──bound──▶ bound
//	   ▲                 │ plan given up      │ Unreserve
//	   └─────────────────┴────────────────────┘
type group struct {
	members map[types.UID]*member
	// counts of members by state, and of gated ones; lead is the pending member of the lowest slot, nil: to
	// be found again. All three follow from members and are kept by put, set and drop alone.
	counts [bound + 1]int
	gated  int
	lead   *member
	// size is what the members' annotation says; sizeErr is set where it says nothing usable.
	size    int
	sizeErr error
	// open says that a plan stands which not all members have followed, since opened.
	open   bool
	opened time.Time
	// fresh says that no member had a node when the gang was planned and that it has not been whole since.
	// Only then is it taken back when it cannot be completed; forming are its members with a node, oldest
	// first.
	fresh   bool
	forming []*v1.Pod
	// givenUp counts plans in a row that could not be followed.
	givenUp int
	// refusal is the last answer, if it was one.
	refusal *gang.Refusal
}

type member struct {
	pod  *v1.Pod
	slot int
	// role is what the pod looks like to filters; see roleOf.
	role string
	// gated: the pod has scheduling gates of others.
	gated bool
	state state
	// node is the planned, reserved or bound one.
	node string
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

func newLedger() *ledger {
	return &ledger{groups: map[types.NamespacedName]*group{}, doomed: map[types.UID]bool{}}
}

// change is what an observation brought about.
type change struct {
	// completed: the gang is complete and has members to be placed, which it was not before.
	completed bool
	// bound: the pod has a node now, which it had not before.
	bound bool
}

// observe notes a pod that exists and is not on its way out.
func (l *ledger) observe(key types.NamespacedName, pod *v1.Pod) change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.note(key, pod)
}

// observeIf is observe for callers whose pod may be out of date: alive is asked under the lock, so that a
// later forget is not overtaken.
func (l *ledger) observeIf(key types.NamespacedName, pod *v1.Pod, alive func() bool) change {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[key]; (g != nil && g.members[pod.UID] != nil) || !alive() {
		return change{}
	}
	return l.note(key, pod)
}

func (l *ledger) note(key types.NamespacedName, pod *v1.Pod) change {
	if l.doomed[pod.UID] {
		return change{}
	}
	g := l.groups[key]
	if g == nil {
		g = &group{members: map[types.UID]*member{}}
		l.groups[key] = g
	}
	was := g.complete() && g.counts[pending] > 0
	m := g.put(pod)
	c := change{}
	if pod.Spec.NodeName != "" && m.state != bound {
		g.set(m, bound, pod.Spec.NodeName)
		c.bound = true
		g.settle()
	}
	c.completed = !was && g.complete() && g.counts[pending] > 0
	return c
}

// forget drops a pod that is gone or on its way out. It reports whether a plan is open, which is then to be
// given up: it was made for a complete gang, and members that wait to follow it may be held back again.
func (l *ledger) forget(key types.NamespacedName, uid types.UID) (broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.doomed, uid)
	g := l.groups[key]
	if g == nil || g.members[uid] == nil {
		return false
	}
	broken = g.open
	g.drop(uid)
	g.unform(uid)
	g.refusal = nil
	if len(g.members) == 0 {
		delete(l.groups, key)
	}
	return broken
}

// admit says whether a pod may enter the queue; if not, why it waits.
func (l *ledger) admit(key types.NamespacedName, uid types.UID) (wait string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	switch {
	case g == nil || g.members[uid] == nil:
		return "" // it is gone; the scheduler finds out by itself
	case g.sizeErr != nil:
		return g.sizeErr.Error()
	case !g.complete():
		return g.incomplete().Message
	case g.members[uid].state != pending:
		return ""
	}
	if first := g.first(); first.pod.UID != uid {
		return "pod " + first.pod.Name + " plans for the gang"
	}
	return ""
}

// leader returns the pod that plans: the lowest slot without a node, once all members exist.
func (l *ledger) leader(key types.NamespacedName) *v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.open || !g.complete() {
		return nil
	}
	if first := g.first(); first != nil {
		return first.pod
	}
	return nil
}

// leads says whether the pod is the one that plans. It is cheap, because every gated pod asks at every event.
func (l *ledger) leads(key types.NamespacedName, uid types.UID) bool {
	pod := l.leader(key)
	return pod != nil && pod.UID == uid
}

// roster is the gang as it stands when it is planned: copies, by slot.
type roster struct {
	size    int
	members []member
}

// brief returns what a plan is made of; ok is false while members are missing.
func (l *ledger) brief(key types.NamespacedName) (r roster, missing *gang.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		g = &group{}
	}
	if g.sizeErr != nil {
		return roster{}, &gang.Refusal{Reason: gang.WaitingForMembers, Message: g.sizeErr.Error()}
	}
	if !g.complete() {
		r := g.incomplete()
		return roster{}, &r
	}
	r.size = max(g.size, len(g.members))
	for _, m := range g.members {
		r.members = append(r.members, *m)
	}
	slices.SortFunc(r.members, bySlot)
	return r, nil
}

// open starts a plan: nodes by pod, for all that have none. It refuses where the gang changed since it was
// looked at.
func (l *ledger) open(key types.NamespacedName, nodes map[types.UID]string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.open || !g.complete() || len(nodes) == 0 || len(nodes) != g.counts[pending] {
		return false
	}
	for uid := range nodes {
		if m := g.members[uid]; m == nil || m.state != pending {
			return false
		}
	}
	if g.counts[reserved]+g.counts[bound] == 0 {
		g.fresh, g.forming = true, nil
	}
	g.open, g.opened, g.refusal = true, now, nil
	for uid, node := range nodes {
		g.set(g.members[uid], planned, node)
	}
	return true
}

// plannedNode returns the node that the open plan names for a pod.
func (l *ledger) plannedNode(key types.NamespacedName, uid types.UID) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[key]; g != nil {
		if m := g.members[uid]; m != nil && m.state == planned {
			return m.node, true
		}
	}
	return "", false
}

// plannedFor says whether a pod is on any open plan.
func (l *ledger) plannedFor(pod *v1.Pod) bool {
	key, ok := translate.GangOf(pod)
	if !ok {
		return false
	}
	_, ok = l.plannedNode(key, pod.UID)
	return ok
}

// reserve notes that the scheduler assumed the pod on the node; false: that is not the plan.
func (l *ledger) reserve(key types.NamespacedName, pod *v1.Pod, node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		return false
	}
	m := g.members[pod.UID]
	if m == nil || m.state != planned || m.node != node {
		return false
	}
	g.set(m, reserved, node)
	if g.fresh {
		g.forming = append(g.forming, m.pod)
	}
	g.settle()
	return true
}

// unreserve takes reserve back; it reports whether there was something to take back.
func (l *ledger) unreserve(key types.NamespacedName, uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.members[uid] == nil || g.members[uid].state != reserved {
		return false
	}
	g.set(g.members[uid], pending, "")
	g.unform(uid)
	return true
}

// giveUp ends the open plan and returns the members that had not followed it, and how many plans in a row
// were given up by now.
func (l *ledger) giveUp(key types.NamespacedName) (released []*v1.Pod, inARow int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		return nil, 0
	}
	for _, m := range g.members {
		if m.state == planned {
			g.set(m, pending, "")
			released = append(released, m.pod)
		}
	}
	g.open = false
	g.givenUp++
	return released, g.givenUp
}

// refuse notes the answer no. It returns what a fresh gang holds already and must give back, newest first.
func (l *ledger) refuse(key types.NamespacedName, r *gang.Refusal) (undo []*v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		return nil
	}
	g.refusal = r
	if !g.fresh {
		return nil
	}
	undo = g.forming
	slices.Reverse(undo)
	g.fresh, g.forming = false, nil
	for _, pod := range undo {
		l.doomed[pod.UID] = true
		g.drop(pod.UID)
	}
	return undo
}

// pardon counts a pod again that could not be taken back.
func (l *ledger) pardon(key types.NamespacedName, pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doomed[pod.UID] {
		delete(l.doomed, pod.UID)
		l.note(key, pod)
	}
}

// overdue lists gangs whose plan was opened before a time and is not followed by all yet.
func (l *ledger) overdue(before time.Time) []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []types.NamespacedName
	for key, g := range l.groups {
		if g.open && g.opened.Before(before) {
			keys = append(keys, key)
		}
	}
	return keys
}

// standing is the gang's placement status as it should be; exists is false when the gang is gone, ok is
// false when there is nothing new to say.
func (l *ledger) standing(key types.NamespacedName) (s v1alpha1.PlacementStatus, ok, exists bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	switch {
	case g == nil:
		return s, false, false
	case g.sizeErr != nil:
		return translate.RefusedStatus(gang.Refusal{Reason: gang.WaitingForMembers, Message: g.sizeErr.Error()}), true, true
	case g.whole():
		return translate.PlacedStatus(g.nodesBySlot()), true, true
	case g.refusal != nil:
		return translate.RefusedStatus(*g.refusal), true, true
	case !g.complete() && g.counts[bound] < len(g.members):
		return translate.RefusedStatus(g.incomplete()), true, true
	default:
		return s, false, true
	}
}

// put adds a member or brings what is known of it up to date.
func (g *group) put(pod *v1.Pod) *member {
	m := g.members[pod.UID]
	if m == nil {
		m = &member{role: roleOf(pod)}
		g.members[pod.UID] = m
		g.counts[pending]++
		g.size, g.sizeErr = translate.GangSize(pod)
	} else if m.gated {
		g.gated--
	}
	m.pod, m.gated = pod, len(pod.Spec.SchedulingGates) > 0
	m.slot, _ = translate.GangSlot(pod)
	if m.gated {
		g.gated++
	}
	g.lead = nil
	return m
}

func (g *group) set(m *member, s state, node string) {
	g.counts[m.state]--
	g.counts[s]++
	m.state, m.node = s, node
	g.lead = nil
}

func (g *group) drop(uid types.UID) {
	m := g.members[uid]
	g.counts[m.state]--
	if m.gated {
		g.gated--
	}
	g.lead = nil
	delete(g.members, uid)
}

func (g *group) unform(uid types.UID) {
	g.forming = slices.DeleteFunc(g.forming, func(p *v1.Pod) bool { return p.UID == uid })
}

// complete says whether all members exist and none is held back by others.
func (g *group) complete() bool { return g.size > 0 && len(g.members) >= g.size && g.gated == 0 }

// whole says whether all members exist and are bound.
func (g *group) whole() bool { return len(g.members) >= g.size && g.counts[bound] == len(g.members) }

func (g *group) incomplete() gang.Refusal {
	return gang.Incomplete(g.size, len(g.members)-g.gated, g.counts[bound])
}

// first is the pending member with the lowest slot.
func (g *group) first() *member {
	if g.lead == nil {
		for _, m := range g.members {
			if m.state == pending && (g.lead == nil || bySlot(*m, *g.lead) < 0) {
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
		g.fresh, g.forming, g.givenUp, g.refusal = false, nil, 0, nil
	}
}

func (g *group) nodesBySlot() []string {
	members := make([]member, 0, len(g.members))
	for _, m := range g.members {
		members = append(members, *m)
	}
	slices.SortFunc(members, bySlot)
	nodes := make([]string, len(members))
	for i, m := range members {
		nodes[i] = m.node
	}
	return nodes
}

func bySlot(a, b member) int {
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.pod.Name, b.pod.Name))
}
