package plugin

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	clienttesting "k8s.io/client-go/testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The text of a preview equals that of the next placement. A query changes nothing.
func TestAPreviewSaysWhatHappens(t *testing.T) {
	sick := node("d", 2)
	taintWith(v1alpha1.TaintUnhealthy, "XidOffBus")(sick)
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), sick, on(pod("blocker", 2), "a"))
	w.attempted() // the scheduler has finished all earlier work
	w.client.ClearActions()
	refusal, err := w.instances.Preview(w.ctx, gangOf("g", 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	yes, err := w.instances.Preview(w.ctx, gangOf("h", 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.client.Actions() {
		patch, ok := a.(clienttesting.PatchAction)
		if a.GetVerb() != "watch" && a.GetResource().Resource != "events" &&
			// informers may begin to watch late; patches and events may belong to the probe above
			(!ok || !strings.HasPrefix(patch.GetName(), "probe")) {
			t.Errorf("a preview did %v", a)
		}
	}
	if w.plugin.gangs.Knows(key("g")) || w.plugin.gangs.Knows(key("h")) {
		t.Error("a preview is remembered")
	}
	want := []v1alpha1.PreviewExcluded{{Cause: "insufficient nvidia.com/gpu", Count: 1, Nodes: []string{"a"}}, {Cause: "unhealthy (XidOffBus)", Count: 1, Nodes: []string{"d"}}}
	if refusal.Placement.Placed || refusal.Nodes != 4 || refusal.Assignments != nil || !reflect.DeepEqual(refusal.Excluded, want) {
		t.Errorf("the refusal is %+v", refusal)
	}
	for _, p := range gangOf("g", 3, 2) {
		w.create(p)
	}
	w.until("the same refusal", w.says("g", refusal.Placement.Message))
	if p := w.placement("g"); p.Reason != refusal.Placement.Reason || p.Fits != refusal.Placement.Fits ||
		p.Wanted != refusal.Placement.Wanted ||
		!reflect.DeepEqual(p.Excluded, refusal.Placement.Excluded) {
		t.Errorf("said %+v, was %+v", refusal.Placement, p)
	}
	if !yes.Placement.Placed || len(yes.Assignments) != 2 {
		t.Fatalf("the placement is %+v", yes)
	}
	for _, p := range gangOf("h", 2, 2) {
		w.create(p)
	}
	w.until("the same placement", w.boundTo(map[string]string{yes.Assignments[0].Pod: yes.Assignments[0].Node, yes.Assignments[1].Pod: yes.Assignments[1].Node}))
}

// Queries and placements arrive at the same time. Each answer describes one moment.
func TestPreviewsWhilePlacing(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	w.attempted()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				got, err := w.instances.Preview(w.ctx, gangOf("asked", 2, 8))
				if err != nil || got.Nodes != 2 || (got.Placement.Placed && strings.Join(got.Placement.Nodes, " ") != "a b") {
					t.Errorf("answer %+v, %v", got, err)
				}
			}
		})
	}
	for i := range 4 {
		for slot := range 2 {
			w.create(memberPod(fmt.Sprint("g", i), slot, 2, 2))
		}
	}
	wg.Wait()
	for i := range 4 {
		w.until("all to be bound", w.boundTo(map[string]string{fmt.Sprintf("g%d-0", i): "*", fmt.Sprintf("g%d-1", i): "*"}))
	}
}
