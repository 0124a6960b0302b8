package nodeoutage

import (
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// all are the nodes with a pod of a gang.
const all = 10

// TestNodes plays ten nodes; each part begins and ends with healthy nodes.
func TestNodes(t *testing.T) {
	w, c := newWorld(t)
	w.nodes(all + 2) // two of them idle
	for i := 1; i <= all; i++ {
		w.talk(w.pod(name(i)), true)
	}
	config := budget.Defaults()
	config.MaxOut, config.MaxOutPerDomain = budget.Limit{Count: 3}, budget.Limit{Count: 2}
	for _, part := range []struct {
		name string
		play func(*world, budget.Config)
	}{
		{"DryRun", dryRun}, {"Budget", spends}, {"Idle", idle}, {"Requests", requests}, {"Suspicions", suspects}, {"Breaker", breaks}, {"Leader", changes}, {"Silence", silence}, {"Away", away},
	} {
		if !t.Run(part.name, func(t *testing.T) { w.t = t; part.play(w, config) }) {
			return
		}
	}
	t.Run("PodsOfGangsAlone", func(t *testing.T) { w.t = t; podsOfGangsAlone(w, c) })
	t.Run("Quota", func(t *testing.T) { w.t = t; madeWithinAQuota(w, c) })
	t.Run("JobsOfGangsAlone", func(t *testing.T) { w.t = t; jobsOfGangsAlone(w, c) })
	t.Run("ObjectsOfGangsAlone", func(t *testing.T) { w.t = t; objectsOfGangsAlone(w, c) })
}

func dryRun(w *world, c budget.Config) {
	defer w.lead(c, true)()
	w.verdict(name(1), v1alpha1.ActionEvict, "FellOffBus")
	w.logged("decided", name(1), "Evict", `"dryRun"=true`) // logged after the decision would have been written
	w.expect(nil, all)
	w.verdict(name(1), v1alpha1.ActionNone, "")
	w.logged("decided", name(1), "None")
	w.expect(nil, all)
}

// spends gives up nodes until the budget of the rack, then that of the cluster is used up, and heals the nodes.
func spends(w *world, c budget.Config) {
	defer w.lead(c, false)()
	w.verdict(name(1), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{1: "Evict"}, all)
	w.verdict(name(3), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{1: "Evict", 3: "Evict"}, all)
	w.verdict(name(5), v1alpha1.ActionEvict, "FellOffBus")
	w.verdict(name(2), v1alpha1.ActionExclude, "TooHot")
	w.expect(map[int]string{1: "Evict", 3: "Evict", 5: "Hold DomainBudget", 2: "Exclude"}, all)
	w.verdict(name(1), v1alpha1.ActionNone, "")
	w.expect(map[int]string{3: "Evict", 5: "Evict", 2: "Exclude"}, all)
	eventually.Succeeds(w.t, "the event", func() error { return w.event(name(5), "NodeGivenUp") })
	for _, i := range []int{2, 3, 5} {
		w.verdict(name(i), v1alpha1.ActionNone, "")
	}
	w.expect(nil, all)
}

// requests: a user's request gives a node up within the budget, or past it; it ends by itself and by its removal, under any leader.
func requests(w *world, c budget.Config) {
	c.MaxOut = budget.Limit{Count: 1}
	stop := w.lead(c, false)
	w.request(name(1), v1alpha1.NodeEviction{Reason: "a fan", By: "ada"}, time.Hour)
	w.expect(map[int]string{1: "Evict"}, all)
	eventually.Succeeds(w.t, "the event", func() error {
		return w.event(name(1), "NodeGivenUp", "EvictedByHand: requested by ada until ", ": a fan")
	})
	w.request(name(2), v1alpha1.NodeEviction{Reason: "a cable"}, time.Hour)
	w.expect(map[int]string{1: "Evict", 2: "Hold ClusterBudget"}, all)
	stop()
	stop = w.lead(c, false)
	w.request(name(3), v1alpha1.NodeEviction{Reason: "at once", Now: true}, 4*time.Second)
	w.expect(map[int]string{1: "Evict", 2: "Hold ClusterBudget", 3: "Evict"}, all)
	w.expect(map[int]string{1: "Evict", 2: "Hold ClusterBudget"}, all) // the third has ended
	stop()
	w.annotate(name(1), v1alpha1.AnnotationEvict, nil) // while no controller runs
	stop = w.lead(c, false)
	w.expect(map[int]string{2: "Evict"}, all)
	w.annotate(name(2), v1alpha1.AnnotationEvict, "{") // counts as unchanged
	w.logged("cannot be decoded", name(2))
	w.expect(map[int]string{2: "Evict"}, all)
	for i := 1; i <= 3; i++ {
		w.annotate(name(i), v1alpha1.AnnotationEvict, nil)
	}
	w.expect(nil, all)
	stop()
}

// suspects: the words of gangs exclude nodes within the limits of a namespace and of the cluster, under any leader. They end by their
// removal, as `evict --undo` does, and by their time. Node checks of two namespaces ask the outage budget.
func suspects(w *world, c budget.Config) {
	c.MaxSuspected, c.MaxSuspectedPerNamespace = budget.Limit{Count: 2}, budget.Limit{Count: 1}
	stop := w.lead(c, false)
	w.suspect(name(1), time.Hour, false, "red")
	w.expect(map[int]string{1: "Exclude"}, all)
	eventually.Succeeds(w.t, "the event", func() error { return w.event(name(1), "NodeExcluded", "a gang suspects its hardware") })
	w.suspect(name(2), time.Hour, false, "red")
	w.suspect(name(3), time.Hour, true, "blue")
	w.suspect(name(4), time.Hour, false, "green")
	w.expect(map[int]string{1: "Exclude", 3: "Exclude"}, all)
	stop()
	w.annotate(name(1), v1alpha1.AnnotationSuspicions, nil) // while no controller runs
	stop = w.lead(c, false)
	w.expect(map[int]string{2: "Exclude", 3: "Exclude"}, all)
	w.suspect(name(3), time.Hour, true, "blue", "green")
	w.expect(map[int]string{2: "Exclude", 3: "Evict"}, all)
	w.suspect(name(2), 4*time.Second, false, "red")
	w.expect(map[int]string{3: "Evict", 4: "Exclude"}, all) // that word has ended
	w.annotate(name(4), v1alpha1.AnnotationSuspicions, "{") // counts as unchanged
	w.logged("cannot be decoded", name(4))
	w.expect(map[int]string{3: "Evict", 4: "Exclude"}, all)
	for i := 2; i <= 4; i++ {
		w.annotate(name(i), v1alpha1.AnnotationSuspicions, nil)
	}
	w.expect(nil, all)
	stop()
}

// idle: giving up a node without a gang uses no budget.
func idle(w *world, c budget.Config) {
	c.MaxOut, c.MaxOutPerDomain = budget.Limit{Count: 1}, budget.Limit{Count: 1}
	defer w.lead(c, false)()
	for _, i := range []int{all + 1, all + 2} {
		w.verdict(name(i), v1alpha1.ActionEvict, "FellOffBus")
	}
	w.expect(map[int]string{all + 1: "Evict idle", all + 2: "Evict idle"}, all+2)
	w.verdict(name(1), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{1: "Evict", all + 1: "Evict idle", all + 2: "Evict idle"}, all+2)
	for _, i := range []int{1, all + 1, all + 2} {
		w.verdict(name(i), v1alpha1.ActionNone, "")
	}
	w.expect(nil, all+2)
}

// breaks: existing decisions stay, and no node is given up while many are sick at once.
func breaks(w *world, c budget.Config) {
	c.MaxOut, c.MaxOutPerDomain = budget.Limit{Count: all}, budget.Limit{Count: all}
	stop := w.lead(c, false)
	for i := 1; i <= 3; i++ {
		w.verdict(name(i), v1alpha1.ActionEvict, "DriverGone")
	}
	w.expect(map[int]string{1: "Evict", 2: "Evict", 3: "Evict"}, all)
	stop() // so that the next nodes turn red at once; one after another, the first ones could be given up below the breaker's share
	for i := 4; i <= 6; i++ {
		w.verdict(name(i), v1alpha1.ActionEvict, "DriverGone")
	}
	defer w.lead(c, false)()
	w.expect(map[int]string{1: "Evict", 2: "Evict", 3: "Evict", 4: "Hold Breaker", 5: "Hold Breaker", 6: "Hold Breaker"}, all)
	for i := 1; i <= 6; i++ {
		w.verdict(name(i), v1alpha1.ActionNone, "")
	}
	w.expect(nil, all)
}

// changes: decisions outlive the leader, and a change while no replica leads is noticed later.
func changes(w *world, c budget.Config) {
	stop := w.lead(c, false)
	w.verdict(name(1), v1alpha1.ActionEvict, "FellOffBus")
	w.verdict(name(2), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{1: "Evict", 2: "Evict"}, all)
	stop()
	w.verdict(name(1), v1alpha1.ActionNone, "")
	w.verdict(name(4), v1alpha1.ActionEvict, "FellOffBus")
	defer w.lead(c, false)()
	w.expect(map[int]string{2: "Evict", 4: "Evict"}, all)
	w.verdict(name(2), v1alpha1.ActionNone, "")
	w.verdict(name(4), v1alpha1.ActionNone, "")
	w.expect(nil, all)
}

// silence: a lease that is not renewed excludes a node. If the agents are silent too, the node counts as dead. When the lease is renewed,
// the node counts as alive.
func silence(w *world, c budget.Config) {
	c.LeaseLate = c.LeaseTimeout
	defer w.lead(c, false)()
	w.mute(name(1), true)
	w.expect(map[int]string{1: "Exclude"}, all)
	w.talk(w.uid(name(1)), false)
	w.expect(map[int]string{1: "Evict dead"}, all)
	w.mute(name(1), false)
	w.talk(w.uid(name(1)), true)
	w.expect(nil, all)
}

// away cuts the controller and the nodes off from the API server for longer than a lease may be silent. Agents do not report either. No
// node is given up, neither then nor afterwards.
func away(w *world, c budget.Config) {
	defer w.lead(c, false)()
	w.verdict(name(1), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{1: "Evict"}, all)
	for i := 1; i <= all; i++ {
		w.talk(w.uid(name(i)), false)
	}
	w.gate.set(true)
	w.logged("contact", `"partitionSuspected"=true`)
	w.verdict(name(1), v1alpha1.ActionNone, "")
	w.gate.set(false)
	for i := 1; i <= all; i++ {
		w.talk(w.uid(name(i)), true)
	}
	before := w.logged("contact", `"partitionSuspected"=false`)
	w.expect(nil, all)
	for _, line := range before {
		if strings.Contains(line, "decided") && strings.Contains(line, `"dead"=true`) {
			w.t.Errorf("called dead: %s", line)
		}
	}
	w.verdict(name(2), v1alpha1.ActionEvict, "FellOffBus")
	w.expect(map[int]string{2: "Evict"}, all)
	w.verdict(name(2), v1alpha1.ActionNone, "")
	w.expect(nil, all)
}
