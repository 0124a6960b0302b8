// Package gangcache holds the scheduler's state of each gang: its members, which of them have nodes, the open plan for
// the other members, and the scheduler's last answer. A restarted scheduler reads the members and their nodes from the
// pods; it has no open plan. Counts and leader are always computed from the members.
//
// The lock of the cache is taken under the lock of the scheduling queue. So the functions of Config, which the cache
// calls under its lock, must not call anything that takes the lock of the scheduling queue. Under the lock of the cache
// only leaf locks are taken: locks under which no other lock is taken.
package gangcache

import (
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/gang/status"
)

// Config has what a Cache needs beside pods. Its functions are called under the cache's lock and take only leaf locks.
type Config struct {
	// Terms returns the terms of a gang, of which one pod is given; ErrTermsUnknown: they were not read yet.
	Terms func(types.NamespacedName, *v1.Pod) (Terms, error)
	// Role returns a key that is equal for pods that every filter judges alike.
	Role func(*v1.Pod) string
	// AwaitsClaims reports whether a pod waits for its resource claims to be created.
	AwaitsClaims func(*v1.Pod) bool
}

// ErrTermsUnknown is returned until the object of a gang was read.
var ErrTermsUnknown = errors.New("the group's object was not read yet")

// Cache is the state of all gangs.
type Cache struct {
	config Config

	mu sync.Mutex
	// groups by gang; each exists while it has a member. Guarded by mu, with its content.
	groups map[types.NamespacedName]*group
	// waiting are the groups with members that have no node; released are nodes on which plans released room, until TakeReleased.
	waiting  map[types.NamespacedName]*group
	released []string
	// terminating are pods that are being rolled back and no longer count.
	terminating map[types.UID]bool
	// exclusive has its own lock, a leaf below mu.
	exclusive *exclusive
}

// New returns an empty Cache.
func New(config Config) *Cache {
	return &Cache{
		config:      config,
		groups:      map[types.NamespacedName]*group{},
		waiting:     map[types.NamespacedName]*group{},
		terminating: map[types.UID]bool{},
		exclusive:   newExclusive(),
	}
}

// Change is what a call changed.
type Change struct {
	// Completed: all members of the gang exist for the first time, and some must be placed.
	Completed bool
	// Bound: the pod got its node.
	Bound bool
	// Phase: the pod's phase changed.
	Phase bool
	// Waited is the time from the existence of all members to the last one's node; zero: not reached by this call.
	Waited time.Duration
}

// Observe records a pod that exists and is not terminating.
func (c *Cache) Observe(key types.NamespacedName, pod *v1.Pod) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note(key, pod)
}

// Enqueued records that the scheduling queue received the pod, perhaps before Observe and with an outdated pod. alive is called under the
// lock, so that a pod for which Forget was called is not added again.
func (c *Cache) Enqueued(key types.NamespacedName, pod *v1.Pod, alive func() bool) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	known := g != nil && g.members[pod.UID] != nil
	if c.terminating[pod.UID] || (known && g.members[pod.UID].queued) || (!known && !alive()) {
		return Change{}
	}
	did := Change{}
	if !known {
		did = c.note(key, pod)
		g = c.groups[key]
	}
	was := g.wanting()
	g.enter(g.members[pod.UID])
	began := g.markWaiting(was)
	did.Completed = did.Completed || began
	return did
}

func (c *Cache) note(key types.NamespacedName, pod *v1.Pod) Change {
	if c.terminating[pod.UID] {
		return Change{}
	}
	g := c.groups[key]
	if g == nil {
		g = c.newGroup(key)
		c.groups[key] = g
	}
	was := g.wanting()
	did := Change{}
	if have := g.members[pod.UID]; have == nil {
		g.setTerms(c.config.Terms(key, pod))
	} else {
		did.Phase = have.Pod.Status.Phase != pod.Status.Phase
	}
	m := g.put(pod)
	if pod.Spec.NodeName != "" && m.State != Bound {
		g.enter(m)
		g.set(m, Bound, pod.Spec.NodeName)
		did.Bound = true
		g.settle()
		if g.allBound() && !g.since.IsZero() {
			did.Waited, g.since = time.Since(g.since), time.Time{}
		}
	}
	did.Completed = g.markWaiting(was)
	return did
}

// NoteTerminating drops a terminating pod; broken: its gang's open plan must be given up.
func (c *Cache) NoteTerminating(key types.NamespacedName, pod *v1.Pod) (broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if s := SlotOf(pod); g != nil && s.Known && pod.Spec.NodeName != "" {
		g.terminating[pod.UID] = gang.Gap{Slot: s.N, Terminating: pod.Name, Node: pod.Spec.NodeName}
	}
	return c.dropMember(key, pod.UID)
}

// Forget drops a pod that is gone or no longer a member; broken: its gang's open plan must be given up.
func (c *Cache) Forget(key types.NamespacedName, uid types.UID) (broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.terminating, uid)
	if g := c.groups[key]; g != nil {
		delete(g.terminating, uid)
	}
	broken = c.dropMember(key, uid)
	c.exclusive.forget(uid)
	return broken
}

// dropMember drops a pod and reports whether an open plan must be given up: the plan named the pod, or it was made for a complete gang and
// members that wait to follow it may be held back again.
func (c *Cache) dropMember(key types.NamespacedName, uid types.UID) (broken bool) {
	g := c.groups[key]
	if g == nil || g.members[uid] == nil {
		return false
	}
	was := g.members[uid].State
	g.drop(uid)
	g.leaveInitial(uid)
	g.refusal = nil
	broken = g.phase.open() && (was == Planned || !g.complete())
	if g.phase.open() && !broken {
		g.settle()
	}
	c.sweep(key, g)
	return broken
}

// sweep drops a gang without members.
func (c *Cache) sweep(key types.NamespacedName, g *group) {
	if len(g.members) == 0 {
		delete(c.groups, key)
	}
}

// Has reports whether a pod is a member.
func (c *Cache) Has(key types.NamespacedName, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.members[uid] != nil
}

// Knows reports whether a gang has members.
func (c *Cache) Knows(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groups[key] != nil
}

// Admit returns why a pod may not enter the queue yet; "" where it may.
func (c *Cache) Admit(key types.NamespacedName, uid types.UID) (wait string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	switch {
	case g == nil || g.members[uid] == nil:
		return "" // the pod is gone; the scheduler drops it
	case g.sizeErr != nil:
		if first := g.first(); g.external() && !errors.Is(g.sizeErr, ErrTermsUnknown) && first != nil && first.Pod.UID == uid {
			return "" // PreFilter refuses it with a message for users
		}
		return g.sizeErr.Error()
	case !g.schedulable():
		if first := g.first(); g.notified != "" && first != nil && first.Pod.UID == uid {
			return "" // the refusal is outdated
		}
		return "members of the gang are missing" // not shown: the Gang lists the missing members
	case !g.queuedAll():
		return "the scheduling queue has not seen all of the gang yet"
	case g.members[uid].State != Pending:
		return ""
	}
	if first := g.first(); first == nil || first.Pod.UID != uid {
		return "another pod plans for the gang"
	}
	return ""
}

// Leader returns the pod that plans: the pending member of the lowest slot, or in a gang with a minimum the one that has waited longest,
// once all members exist; nil: none.
func (c *Cache) Leader(key types.NamespacedName) *v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.phase.open() || !g.complete() {
		return nil
	}
	if first := g.first(); first != nil {
		return first.Pod
	}
	return nil
}

// nudgeEvery bounds how often the leader of a gang that lost members skips its backoff.
const nudgeEvery = 100 * time.Millisecond

// ClaimLead reports whether the pod is the one that plans. Every gated pod calls it at every event, so it is cheap. hurry: other members
// wait for the pod on their nodes, so it skips its backoff; ClaimLead records that.
func (c *Cache) ClaimLead(key types.NamespacedName, uid types.UID, now time.Time) (leads, hurry bool) {
	pod := c.Leader(key)
	if pod == nil || pod.UID != uid {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.refusal == nil || g.counts[Bound] == 0 || g.minimumPlaced() || now.Sub(g.nudged) < nudgeEvery {
		return true, false
	}
	g.nudged = now
	return true, true
}

// PlanInput returns the input of a plan, or a refusal while members are missing.
func (c *Cache) PlanInput(key types.NamespacedName) (r Snapshot, missing *gang.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		g = c.newGroup(key)
	}
	if g.sizeErr != nil {
		g.notified = g.sizeErr.Error()
		return Snapshot{}, &gang.Refusal{Reason: gang.WaitingForMembers, Message: g.notified}
	}
	g.notified = ""
	if !g.complete() {
		r := g.incomplete()
		return Snapshot{}, &r
	}
	return c.planned(g), nil
}

// Waited returns how long all that is needed to place the gang has existed.
func (c *Cache) Waited(key types.NamespacedName, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[key]; g != nil && !g.since.IsZero() {
		return now.Sub(g.since)
	}
	return 0
}

// Open opens a plan: nodes by pod, for all members without a node. Open returns false if the gang has changed since the plan was computed.
func (c *Cache) Open(key types.NamespacedName, nodes map[types.UID]string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.phase.open() || !g.complete() || len(nodes) == 0 || (g.terms.Min == 0 && len(nodes) != g.counts[Pending]) {
		return false
	}
	for uid := range nodes {
		if m := g.members[uid]; m == nil || m.State != Pending {
			return false
		}
	}
	g.begin(now)
	for uid, node := range nodes {
		g.set(g.members[uid], Planned, node)
	}
	return true
}

// PlannedNode returns the node that the open plan names for a pod.
func (c *Cache) PlannedNode(key types.NamespacedName, uid types.UID) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[key]; g != nil {
		if m := g.members[uid]; m != nil && m.State == Planned {
			return m.Node, true
		}
	}
	return "", false
}

// Expected returns the members on their way to their planned node, by node.
func (c *Cache) Expected() map[string][]*v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]*v1.Pod{}
	for _, g := range c.groups {
		if g.counts[Planned] == 0 {
			continue
		}
		for _, m := range g.members {
			if m.State == Planned {
				all[m.Node] = append(all[m.Node], m.Pod)
			}
		}
	}
	return all
}

// Reserve records that the scheduler assumed the pod on the node; false: the plan names no such node.
func (c *Cache) Reserve(key types.NamespacedName, pod *v1.Pod, node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		return false
	}
	m := g.members[pod.UID]
	if m == nil || m.State != Planned || m.Node != node {
		return false
	}
	g.set(m, Reserved, node)
	if g.phase.initial() {
		g.initialPlacement = append(g.initialPlacement, m.Pod)
	}
	g.settle()
	return true
}

// Unreserve reverts Reserve; false: the pod was not reserved.
func (c *Cache) Unreserve(key types.NamespacedName, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.members[uid] == nil || g.members[uid].State != Reserved {
		return false
	}
	g.set(g.members[uid], Pending, "")
	g.leaveInitial(uid)
	return true
}

// GiveUp ends the open plan. GiveUp returns the members that had not followed it, and how many plans in a row were given up.
func (c *Cache) GiveUp(key types.NamespacedName) (released []*v1.Pod, inARow int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		return nil, 0
	}
	for _, m := range g.members {
		if m.State == Planned {
			g.set(m, Pending, "")
			released = append(released, m.Pod)
		}
	}
	g.transition(planEnded)
	g.givenUp++
	return released, g.givenUp
}

// Refuse records a refusal. In an initial placement it returns the members that must be rolled back, newest first. An undecided
// refusal replaces no other refusal and rolls nothing back.
func (c *Cache) Refuse(key types.NamespacedName, r *gang.Refusal) (undo []*v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || r.Undecided && g.refusal != nil {
		return nil
	}
	if g.refusal = r; r.Undecided {
		return nil
	}
	undo = c.rollback(g)
	c.sweep(key, g)
	return undo
}

// Restore counts a pod again whose rollback failed.
func (c *Cache) Restore(key types.NamespacedName, pod *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.terminating[pod.UID] {
		delete(c.terminating, pod.UID)
		c.note(key, pod)
	}
}

// AnyOpen reports whether any gang has an open plan.
func (c *Cache) AnyOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.groups {
		if g.phase.open() || g.counts[Reserved] > 0 {
			return true
		}
	}
	return false
}

// Overdue returns the gangs whose plan was opened before a time and is still open.
func (c *Cache) Overdue(before time.Time) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []types.NamespacedName
	for key, g := range c.groups {
		if g.phase.open() && g.opened.Before(before) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Status returns the placement status that the Gang should have; exists is false if the gang is gone, ok is false if the status need not
// change.
func (c *Cache) Status(key types.NamespacedName) (s v1alpha1.PlacementStatus, ok, exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	switch {
	case g == nil:
		return s, false, false
	case g.sizeErr != nil:
		return status.Refused(gang.Refusal{Reason: gang.WaitingForMembers, Message: g.sizeErr.Error()}), true, true
	case g.allBound():
		// A member that succeeds does not make the gang count as placed again.
		return g.placedStatus(), len(g.ended) == 0 || g.endedBefore > 0, true
	case g.refusal != nil:
		return status.Refused(*g.refusal), true, true
	}
	if r, ok := g.missingMembers(); ok {
		return status.Refused(r), true, true
	}
	return s, false, true
}
