package gangcache

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// A gang that was never complete holds its nodes in vain unless the rest is placed: it is in its *initial placement*, and is rolled back
// when it is refused or lacks members for too long. A gang that was complete keeps its nodes, because its members run. This process knows
// the difference for a gang that it saw complete or planned; for one that it found half bound, the stamps in the bindings decide.

// StampText is the annotation in the bindings of pods placed together in an initial placement: when the youngest was created, and a
// checksum of the UIDs of pods.
func StampText(youngest time.Time, pods iter.Seq[*v1.Pod]) string {
	var uids []string
	for pod := range pods {
		uids = append(uids, string(pod.UID))
	}
	slices.Sort(uids)
	sum := fnv.New32a()
	for _, uid := range uids {
		sum.Write([]byte(uid + "\n"))
	}
	return fmt.Sprintf("%s/%08x", youngest.UTC().Format(time.RFC3339), sum.Sum32())
}

// stampText is the gang's stamp. Its checksum is of the pods that were created in the second of the youngest: creation times have no
// fractions, and the checksum distinguishes a pod that was re-created within that second from the pods that were planned first. In an
// elastic gang it is of all pods: those that were left out of the initial placement are as old as those that were in it.
func (g *group) stampText(youngest time.Time) string {
	return StampText(youngest, func(yield func(*v1.Pod) bool) {
		for _, m := range g.members {
			if (g.terms.Min > 0 || m.Pod.CreationTimestamp.Time.Equal(youngest)) && !yield(m.Pod) {
				return
			}
		}
	})
}

// StampOf returns a pod's stamp and the creation time in it; ok is false for a pod that joined a complete gang.
func StampOf(pod *v1.Pod) (youngest time.Time, stamp string, ok bool) {
	stamp = pod.Annotations[v1alpha1.AnnotationInitialPlacement]
	created, _, ok := strings.Cut(stamp, "/")
	youngest, err := time.Parse(time.RFC3339, created)
	return youngest, stamp, ok && err == nil
}

// Stamp returns the stamp for a pod's binding; "": none.
func (c *Cache) Stamp(key types.NamespacedName, uid types.UID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil || !g.phase.initial() || g.members[uid] == nil {
		return ""
	}
	return g.stamp
}

// inferInitial decides whether a gang that this process found half bound was ever complete. It was not, if all bound members have a stamp
// and a member of that placement still has no node: of an elastic gang only if no pod came or went since.
func (g *group) inferInitial() {
	if known := g.phase.initial() || g.phase == whole || g.phase == repairing; known || g.minimumPlaced() {
		return
	}
	var half []Member
	var youngest time.Time
	var newest string
	for _, m := range g.members {
		if m.State != Bound {
			continue
		}
		created, stamp, ok := StampOf(m.Pod)
		if !ok {
			return
		}
		half = append(half, *m)
		if created.After(youngest) {
			youngest, newest = created, stamp
		}
	}
	left, same := false, newest == g.stampText(youngest)
	for _, m := range g.members {
		created := m.Pod.CreationTimestamp.Time
		left = left || m.State != Bound && (same && !created.After(youngest) || g.terms.Min == 0 && created.Before(youngest))
	}
	if len(half) == 0 || !left {
		return
	}
	slices.SortFunc(half, BySlot)
	g.transition(stampsFound)
	g.youngest, g.initialPlacement = youngest, nil
	for _, m := range half {
		g.initialPlacement = append(g.initialPlacement, m.Pod)
	}
}

// begin opens a plan.
func (g *group) begin(now time.Time) {
	g.inferInitial()
	g.opened, g.endedBefore = now, len(g.ended)
	if g.counts[Reserved]+g.counts[Bound] == 0 {
		g.transition(firstPlanOpened)
	} else {
		g.transition(planOpened)
	}
	for _, m := range g.members {
		if created := m.Pod.CreationTimestamp.Time; created.After(g.youngest) {
			g.youngest = created
		}
	}
	g.stamp = g.stampText(g.youngest)
}

// rollback ends an initial placement. The returned pods, newest first, must be deleted and no longer count.
func (c *Cache) rollback(g *group) (undo []*v1.Pod) {
	g.inferInitial()
	if !g.phase.initial() || g.minimumPlaced() {
		return nil
	}
	undo = g.initialPlacement
	if g.external() { // a pod that no controller re-creates stays
		undo = slices.DeleteFunc(undo, func(pod *v1.Pod) bool { return metav1.GetControllerOf(pod) == nil })
	}
	slices.Reverse(undo)
	g.transition(rolledBack)
	for _, pod := range undo {
		c.terminating[pod.UID] = true
		g.drop(pod.UID)
	}
	return undo
}

// Lapse is a gang in its initial placement whose missing members were not re-created in time.
type Lapse struct {
	Key      types.NamespacedName
	RollBack []*v1.Pod
	Why      string
}

// SweepLapsed records which gangs in their initial placement lack members, and gives up those that have lacked them for the timeout.
func (c *Cache) SweepLapsed(now time.Time, timeout time.Duration) []Lapse {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Lapse
	for key, g := range c.groups {
		if g.allExist() || g.phase.open() || g.sizeErr != nil || g.counts[Reserved]+g.counts[Bound] == 0 {
			g.gapSince = time.Time{}
			continue
		}
		g.inferInitial()
		switch {
		case !g.phase.initial():
		case g.gapSince.IsZero():
			g.gapSince = now
		case now.Sub(g.gapSince) >= cmp.Or(g.terms.Timeout, timeout) && g.counts[Reserved] == 0:
			r := g.incomplete()
			r.Message += ", for " + now.Sub(g.gapSince).Round(time.Second).String() + ": the initial placement is rolled back"
			g.refusal = &r
			all = append(all, Lapse{Key: key, RollBack: c.rollback(g), Why: r.Message})
			c.sweep(key, g)
		}
	}
	return all
}

// Question is a query for the members of a gang that succeeded.
type Question struct {
	Key     types.NamespacedName
	Member  *v1.Pod
	version int
}

// SweepUnexplained returns the gangs that have lacked members since the last call. A gang is returned again until Explain is called for its
// present set of members.
func (c *Cache) SweepUnexplained() []Question {
	c.mu.Lock()
	defer c.mu.Unlock()
	var open []Question
	for key, g := range c.groups {
		if g.size > 0 && !g.allExist() && g.calm == g.version && g.asked != g.version {
			for _, m := range g.members {
				open = append(open, Question{Key: key, Member: m.Pod, version: g.version})
				break
			}
		}
		g.calm = g.version
	}
	return open
}

// Explain records the missing members that succeeded.
func (c *Cache) Explain(q Question, ended []*v1.Pod) Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[q.Key]
	if g == nil {
		return Change{}
	}
	was, led := g.wanting(), g.first()
	g.asked = q.version
	if g.external() {
		clear(g.ended) // the answer lists all; a deleted one may be re-created
	}
	for _, pod := range ended {
		g.ended[pod.UID] = SlotOf(pod)
	}
	g.lead, g.blocks = nil, nil
	began := g.markWaiting(was)
	return Change{Completed: began || g.first() != led && g.wanting()} // its block may be whole now
}

// missingMembers returns the refusal of a gang whose missing members did not succeed.
func (g *group) missingMembers() (gang.Refusal, bool) {
	if g.schedulable() {
		return gang.Refusal{}, false
	}
	return g.incomplete(), g.counts[Bound] < len(g.members) || g.asked == g.version
}
