package gangcache

import (
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/gang"
)

// Revise reads a gang's terms again. again is the pod that was refused under the old terms or for lack of room, and must be retried;
// broken: an open plan is invalid.
func (c *Cache) Revise(key types.NamespacedName) (did Change, again *v1.Pod, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		return Change{}, nil, false
	}
	was, old := g.wanting(), g.terms
	for _, m := range g.members {
		g.setTerms(c.config.Terms(key, m.Pod))
		break
	}
	if !reflect.DeepEqual(old, g.terms) {
		g.version++
	}
	g.settle()
	if first := g.first(); first != nil && !g.phase.open() && (g.notified != "" || g.refusal != nil && !reflect.DeepEqual(old, g.terms)) {
		again = first.Pod
	}
	return Change{Completed: g.markWaiting(was)}, again, g.phase.open() && !g.complete()
}

// AllRefused returns the gangs whose last answer was a refusal.
func (c *Cache) AllRefused() []types.NamespacedName {
	return c.keys(func(_ types.NamespacedName, g *group) bool { return g.refusal != nil })
}

// Waiting returns the members without a node that are not gated, by slot, and the refusal; ok is false if there is none.
func (c *Cache) Waiting(key types.NamespacedName) (pods []*v1.Pod, why gang.Refusal, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	switch {
	case g == nil || g.phase.open() || g.counts[Pending] == 0:
		return nil, why, false
	case g.sizeErr != nil:
		why = gang.Refusal{Reason: gang.WaitingForMembers, Message: g.sizeErr.Error()}
	case g.refusal != nil:
		why = *g.refusal
	default:
		if why, ok = g.missingMembers(); !ok {
			return nil, why, false
		}
	}
	if why.Undecided {
		return nil, why, false
	}
	var waiting []Member
	for _, m := range g.members {
		if m.State == Pending && !m.gated {
			waiting = append(waiting, *m)
		}
	}
	slices.SortFunc(waiting, BySlot)
	for _, m := range waiting {
		pods = append(pods, m.Pod)
	}
	return pods, why, true
}

// OfResource returns the gangs that are groups of a resource of another API.
func (c *Cache) OfResource(resource string) []types.NamespacedName {
	return c.keys(func(key types.NamespacedName, _ *group) bool { return strings.HasPrefix(key.Name, resource+"/") })
}

// keys returns the gangs that match.
func (c *Cache) keys(which func(types.NamespacedName, *group) bool) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []types.NamespacedName
	for key, g := range c.groups {
		if which(key, g) {
			keys = append(keys, key)
		}
	}
	return keys
}

// IsOpen reports whether a plan is open for a gang.
func (c *Cache) IsOpen(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.phase.open()
}

// Idle returns gangs that could have been planned since a time and were not.
func (c *Cache) Idle(before time.Time) []types.NamespacedName {
	return c.keys(func(_ types.NamespacedName, g *group) bool {
		return !g.phase.open() && g.refusal == nil && g.wanting() && !g.since.IsZero() && g.since.Before(before)
	})
}

// Wants reports whether a gang has members to be placed.
func (c *Cache) Wants(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.counts[Pending] > 0
}

// Needs reports whether a gang has members to be placed that it needs.
func (c *Cache) Needs(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.counts[Pending] > 0 && !g.enough()
}

// Schedulable reports whether enough members of a gang exist and are not gated.
func (c *Cache) Schedulable(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.schedulable()
}

// IsPending reports whether a member has no node and no planned one.
func (c *Cache) IsPending(key types.NamespacedName, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	return g != nil && g.members[uid] != nil && g.members[uid].State == Pending
}

// noticeFor is how long a refusal is not repeated in an event with the same text: less than API servers store events.
const noticeFor = 30 * time.Minute

// notice is a gang's newest refusal in an event.
type notice struct {
	pod  types.UID
	note string
	at   time.Time
}

// RecordNotice records a refusal for an event, and reports whether it differs from the last one. A gang is planned again and again;
// repeated events would add nothing.
func (c *Cache) RecordNotice(key types.NamespacedName, pod types.UID, note string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		return true
	}
	if g.lastNotice.pod == pod && g.lastNotice.note == note && now.Sub(g.lastNotice.at) < noticeFor {
		return false
	}
	g.lastNotice = notice{pod, note, now}
	return true
}

// Placed reports whether this scheduler process placed a member on its node. After a restart it is false for pods placed before.
func (c *Cache) Placed(key types.NamespacedName, pod *v1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || g.members[pod.UID] == nil {
		return false
	}
	m := g.members[pod.UID]
	return m.ours && m.Node == pod.Spec.NodeName
}

// StuckMember is a member that has had its node for long and has not started there.
type StuckMember struct {
	Key types.NamespacedName
	Pod *v1.Pod
}

// Stuck returns the members that this scheduler placed before a time and that do not run, of gangs of which most run.
func (c *Cache) Stuck(before time.Time) []StuckMember {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []StuckMember
	for key, g := range c.groups {
		if g.counts[Bound] == 0 {
			continue
		}
		runs := 0
		var late []StuckMember
		for _, m := range g.members {
			switch {
			case m.State != Bound:
			case m.Pod.Status.Phase == v1.PodRunning:
				runs++
			case m.ours && boundAt(m.Pod).Before(before):
				late = append(late, StuckMember{Key: key, Pod: m.Pod})
			}
		}
		if 2*runs > len(g.members) {
			all = append(all, late...)
		}
	}
	return all
}

// boundAt returns when a pod got its node.
func boundAt(pod *v1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// Refused returns the gangs whose last answer was a refusal for lack of room.
func (c *Cache) Refused() []types.NamespacedName {
	return c.keys(func(_ types.NamespacedName, g *group) bool {
		return g.refusal != nil && g.refusal.Reason == gang.InsufficientNodes
	})
}

// BeingPlaced returns the gangs with an open plan: they are not preempted now.
func (c *Cache) BeingPlaced() map[types.NamespacedName]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[types.NamespacedName]bool{}
	for key, g := range c.groups {
		if g.phase.open() || g.counts[Reserved] > 0 {
			all[key] = true
		}
	}
	return all
}
