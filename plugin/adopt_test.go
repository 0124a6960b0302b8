package plugin

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/gang"
)

// listening is a framework handle that records nominations.
type listening struct {
	handle
	onNominated func()
}

func (l *listening) AddNominatedPod(logger klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	if l.onNominated != nil {
		l.onNominated()
	}
	l.handle.AddNominatedPod(logger, pod, info)
}

// When a plan is given up while members are being nominated, no nomination of the plan stays.
func TestNoNominationIsLeftOfAPlanThatWasGivenUp(t *testing.T) {
	w := newWorld(t, extras{follower: true}, node("a", 2), node("b", 2), node("c", 2))
	l := &listening{handle: w.plugin.handle}
	w.plugin.handle = l
	given := false
	l.onNominated = func() {
		if !given { // the last member terminates, as the event handler would record
			given = true
			w.plugin.memberRemoved(klog.Background(), key("g"), w.plugin.gangs.NoteTerminating(key("g"), w.pod("g-2")))
		}
	}
	for _, p := range gangOf("g", 3, 2) {
		w.create(p)
	}
	w.until("all to be there", func() bool {
		r, missing := w.plugin.gangs.PlanInput(key("g"))
		return missing == nil && len(r.Members) == 3
	})
	plan := map[types.UID]string{}
	r, _ := w.plugin.gangs.PlanInput(key("g"))
	placement := placementOn("a", "b", "c")
	for i, m := range r.Members {
		plan[m.Pod.UID] = placement.Assignments[i].Node
	}
	if err := w.plugin.adopt(w.ctx, key("g"), r.Members[0].Pod, r, placement); err != nil || !given {
		t.Fatalf("%v, given up: %v", err, given)
	}
	for _, name := range []string{"a", "b", "c"} {
		for _, p := range l.NominatedPodsForNode(name) {
			t.Errorf("pod %s is still nominated for node %s, its plan is %v", p.GetPod().Name, name, plan)
		}
	}
}

func placementOn(nodes ...string) gang.Placement {
	p := gang.Placement{Placed: len(nodes)}
	for slot, node := range nodes {
		p.Assignments = append(p.Assignments, gang.Assignment{Slot: slot, Member: fmt.Sprint("g-", slot), Node: node})
	}
	return p
}
