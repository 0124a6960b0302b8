package plugin

import (
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/plugin/groups"
)

// ledger is what is known of each gang. All of it but the open plans follows from the pods, so that a
// restarted scheduler knows it again as soon as it has seen them.
type ledger struct {
	mu sync.Mutex
	// groups by gang; one exists while a member does. Guarded by mu, with all that is in it.
	groups map[types.NamespacedName]*group
	// doomed are pods that are being taken back and count no more.
	doomed map[types.UID]bool
	// terms says what is known of a gang besides its pods, of which one is given. It takes leaf locks alone.
	terms func(types.NamespacedName, *v1.Pod) (groups.Terms, error)
	// closed has a lock of its own, a leaf below mu.
	closed *closings
	// noClaims: nobody makes resource claims here.
	noClaims bool
}

func newLedger() *ledger {
	return &ledger{groups: map[types.NamespacedName]*group{}, doomed: map[types.UID]bool{}, closed: newClosings(),
		terms: func(_ types.NamespacedName, pod *v1.Pod) (groups.Terms, error) { return groups.OwnTerms(pod) }}
}

// change is what an observation brought about.
type change struct {
	// completed: the gang is complete and has members to be placed, which it was not before.
	completed bool
	// bound: the pod has a node now, which it had not before.
	bound bool
	// phase: the pod is in another phase of its life than it was.
	phase bool
	// waited is how long it took from all members being there until all have a node, where that came about now.
	waited time.Duration
}

// observe notes a pod that exists and is not on its way out.
func (l *ledger) observe(key types.NamespacedName, pod *v1.Pod) change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.note(key, pod)
}

// enqueued notes that the scheduling queue takes the pod in, which may come before observe and be out of date:
// alive is asked under the lock, so that a later forget is not overtaken.
func (l *ledger) enqueued(key types.NamespacedName, pod *v1.Pod, alive func() bool) change {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	known := g != nil && g.members[pod.UID] != nil
	if l.doomed[pod.UID] || (known && g.members[pod.UID].queued) || (!known && !alive()) {
		return change{}
	}
	c := change{}
	if !known {
		c = l.note(key, pod)
		g = l.groups[key]
	}
	was := g.wanting()
	g.enter(g.members[pod.UID])
	c.completed = c.completed || (!was && g.wants())
	return c
}

func (l *ledger) note(key types.NamespacedName, pod *v1.Pod) change {
	if l.doomed[pod.UID] {
		return change{}
	}
	g := l.groups[key]
	if g == nil {
		g = newGroup(key, l.closed)
		g.foreign, g.noClaims = isForeign(key), l.noClaims
		l.groups[key] = g
	}
	was := g.wanting()
	c := change{}
	if have := g.members[pod.UID]; have == nil {
		g.agree(l.terms(key, pod))
	} else {
		c.phase = have.pod.Status.Phase != pod.Status.Phase
	}
	m := g.put(pod)
	if pod.Spec.NodeName != "" && m.state != bound {
		g.enter(m)
		g.set(m, bound, pod.Spec.NodeName)
		c.bound = true
		g.settle()
		if g.whole() && !g.since.IsZero() {
			c.waited, g.since = time.Since(g.since), time.Time{}
		}
	}
	c.completed = !was && g.wants()
	return c
}

// leave drops a pod that was told to end and has not done so yet.
func (l *ledger) leave(key types.NamespacedName, pod *v1.Pod) (broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if s := slotOf(pod); g != nil && s.known && pod.Spec.NodeName != "" {
		g.leaving[pod.UID] = gang.Gap{Slot: s.n, Leaving: pod.Name, Node: pod.Spec.NodeName}
	}
	return l.dropped(key, pod.UID)
}

// forget drops a pod that is gone, or is a member no more.
func (l *ledger) forget(key types.NamespacedName, uid types.UID) (broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.doomed, uid)
	if g := l.groups[key]; g != nil {
		delete(g.leaving, uid)
	}
	broken = l.dropped(key, uid)
	l.closed.forget(uid)
	return broken
}

// dropped reports whether a plan is open that is to be given up: its line for the pod is void, or it was made
// for a complete gang and members that wait to follow it may be held back again.
func (l *ledger) dropped(key types.NamespacedName, uid types.UID) (broken bool) {
	g := l.groups[key]
	if g == nil || g.members[uid] == nil {
		return false
	}
	was := g.members[uid].state
	g.drop(uid)
	g.unform(uid)
	g.refusal = nil
	broken = g.open && (was == planned || !g.complete())
	if g.open && !broken {
		g.settle()
	}
	l.sweep(key, g)
	return broken
}

// sweep ends a gang without members.
func (l *ledger) sweep(key types.NamespacedName, g *group) {
	if len(g.members) == 0 {
		delete(l.groups, key)
	}
}

// has says whether a pod is a member.
func (l *ledger) has(key types.NamespacedName, uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	return g != nil && g.members[uid] != nil
}

// knows says whether there are members of a gang.
func (l *ledger) knows(key types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.groups[key] != nil
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
		if first := g.first(); isForeign(key) && !errors.Is(g.sizeErr, groups.ErrUnknown) && first != nil && first.pod.UID == uid {
			return "" // it is refused where people see it
		}
		return g.sizeErr.Error()
	case !g.able():
		if first := g.first(); g.told != "" && first != nil && first.pod.UID == uid {
			return "" // what it heard is not true any more
		}
		return "members of the gang are missing" // nobody reads it: the Gang says which
	case !g.queuedAll():
		return "the scheduling queue has not seen all of the gang yet"
	case g.members[uid].state != pending:
		return ""
	}
	if first := g.first(); first == nil || first.pod.UID != uid {
		return "another pod plans for the gang"
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
// hurry: the others of its gang wait for it on their nodes, so it is not to sit out its backoff.
func (l *ledger) leads(key types.NamespacedName, uid types.UID, now time.Time) (leads, hurry bool) {
	pod := l.leader(key)
	if pod == nil || pod.UID != uid {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.refusal == nil || g.counts[bound] == 0 || g.manned() || now.Sub(g.nudged) < nudgeEvery {
		return true, false
	}
	g.nudged = now
	return true, true
}

// roster is the gang as it stands when it is planned: copies, by slot.
type roster struct {
	size int
	// least is how many must be on nodes, 0: all.
	least   int
	terms   groups.Terms
	members []member
	// paced is set where the gang is planned, not asked about: the pod that plans.
	paced types.UID
}

// brief returns what a plan is made of; ok is false while members are missing.
func (l *ledger) brief(key types.NamespacedName) (r roster, missing *gang.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil {
		g = newGroup(key, l.closed)
	}
	if g.sizeErr != nil {
		g.told = g.sizeErr.Error()
		return roster{}, &gang.Refusal{Reason: gang.WaitingForMembers, Message: g.told}
	}
	g.told = ""
	if !g.complete() {
		r := g.incomplete()
		return roster{}, &r
	}
	for _, m := range g.members {
		if m.gated && m.state == pending {
			continue // the gang does without it
		}
		r.members = append(r.members, *m)
	}
	r.size, r.terms = max(g.size-g.over(), len(r.members)), g.terms
	if g.terms.Min > 0 {
		r.least = max(1, g.terms.Min-g.over())
	}
	slices.SortFunc(r.members, bySlot)
	return r, nil
}

// waited is for how long all that is needed to place the gang has been there.
func (l *ledger) waited(key types.NamespacedName, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[key]; g != nil && !g.since.IsZero() {
		return now.Sub(g.since)
	}
	return 0
}

// open starts a plan: nodes by pod, for all that have none. It refuses where the gang changed since it was
// looked at.
func (l *ledger) open(key types.NamespacedName, nodes map[types.UID]string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.open || !g.complete() || len(nodes) == 0 || (g.terms.Min == 0 && len(nodes) != g.counts[pending]) {
		return false
	}
	for uid := range nodes {
		if m := g.members[uid]; m == nil || m.state != pending {
			return false
		}
	}
	g.begin()
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

// expected lists the members that are on their way to their planned node, by node.
func (l *ledger) expected() map[string][]*v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]*v1.Pod{}
	for _, g := range l.groups {
		if g.counts[planned] == 0 {
			continue
		}
		for _, m := range g.members {
			if m.state == planned {
				all[m.node] = append(all[m.node], m.pod)
			}
		}
	}
	return all
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
	undo = l.takeBack(g)
	l.sweep(key, g)
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

// placing says whether any gang is on its way to its nodes.
func (l *ledger) placing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.groups {
		if g.open || g.counts[reserved] > 0 {
			return true
		}
	}
	return false
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
		return status.Refused(gang.Refusal{Reason: gang.WaitingForMembers, Message: g.sizeErr.Error()}), true, true
	case g.whole():
		// What ends well leaves a gang that is not to be called placed anew for that.
		return g.placedStatus(), len(g.ended) == 0 || g.repaired, true
	case g.refusal != nil:
		return status.Refused(*g.refusal), true, true
	}
	if r, ok := g.census(); ok {
		return status.Refused(r), true, true
	}
	return s, false, true
}
