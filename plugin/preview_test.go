package plugin

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// What a preview says is what happens next, to the word; asking changes nothing.
func TestAPreviewSaysWhatHappens(t *testing.T) {
	sick := node("d", 2)
	taintWith(v1alpha1.TaintUnhealthy, "XidOffBus")(sick)
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), node("c", 2), sick, on(pod("blocker", 2), "a"))
	w.attempted() // the scheduler is in its stride
	w.client.ClearActions()
	no, err := w.station.Preview(w.ctx, gangOf("g", 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	yes, err := w.station.Preview(w.ctx, gangOf("h", 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.client.Actions() {
		patch, ok := a.(clienttesting.PatchAction)
		if a.GetResource().Resource != "events" && (!ok || !strings.HasPrefix(patch.GetName(), "probe")) { // of the probe before
			t.Errorf("a preview did %v", a)
		}
	}
	if w.plugin.gangs.Knows(key("g")) || w.plugin.gangs.Knows(key("h")) {
		t.Error("a preview is remembered")
	}
	want := []v1alpha1.PreviewExcluded{{Cause: "insufficient nvidia.com/gpu", Count: 1, Nodes: []string{"a"}}, {Cause: "unhealthy (XidOffBus)", Count: 1, Nodes: []string{"d"}}}
	if no.Placement.Placed || no.Nodes != 4 || no.Seats != nil || !reflect.DeepEqual(no.Excluded, want) {
		t.Errorf("the refusal is %+v", no)
	}
	for _, p := range gangOf("g", 3, 2) {
		w.create(p)
	}
	w.until("the same refusal", w.says("g", no.Placement.Message))
	if p := w.placement("g"); p.Reason != no.Placement.Reason || p.Fits != no.Placement.Fits || p.Wanted != no.Placement.Wanted || !reflect.DeepEqual(p.Excluded, no.Placement.Excluded) {
		t.Errorf("said %+v, was %+v", no.Placement, p)
	}
	if !yes.Placement.Placed || len(yes.Seats) != 2 {
		t.Fatalf("the placement is %+v", yes)
	}
	for _, p := range gangOf("h", 2, 2) {
		w.create(p)
	}
	w.until("the same placement", w.boundTo(map[string]string{yes.Seats[0].Pod: yes.Seats[0].Node, yes.Seats[1].Pod: yes.Seats[1].Node}))
}

// Pods that the API server has not seen yet ask for what they are limited to.
func TestAPreviewCountsLimits(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.attempted()
	pods := gangOf("g", 3, 2)
	for _, p := range pods {
		p.Spec.Containers[0].Resources.Requests = nil
	}
	got, err := w.station.Preview(w.ctx, pods)
	if err != nil || got.Placement.Message != "3 pods wanted, 2 fit: 2 nodes" {
		t.Errorf("answer %+v, %v", got, err)
	}
}

// A preview of a gang that lost a member places the missing one beside those that run.
func TestAPreviewOfAGangThatExists(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2), on(memberPod("g", 0, 2, 2), "a"))
	w.knows(1)
	w.attempted()
	got, err := w.station.Preview(w.ctx, gangOf("g", 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	if !got.Placement.Placed || got.Placement.Wanted != 1 || strings.Join(got.Placement.Nodes, " ") != "a b" {
		t.Errorf("answer %+v", got)
	}
	few, err := w.station.Preview(w.ctx, gangOf("h", 3, 2)[:2])
	if err != nil || few.Placement.Reason != v1alpha1.ReasonWaitingForMembers || few.Placement.Message != "2 of 3 pods exist" {
		t.Errorf("too few pods: %+v, %v", few, err)
	}
}

func TestAPreviewRefusesWhatItCannotAnswer(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2))
	w.attempted()
	twin := gangOf("g", 2, 1)
	twin[1].Name = twin[0].Name
	unsized := gangOf("g", 1, 1)
	unsized[0].Annotations = nil
	for says, pods := range map[string][]*v1.Pod{
		"has no label holdfast.dev/gang":       {pod("plain", 1)},
		"is not of gang g":                     {memberPod("g", 0, 2, 1), memberPod("h", 1, 2, 1)},
		"two pods are named g-0":               twin,
		"no annotation holdfast.dev/gang-size": unsized,
		`names scheduler "other"`:              {func() *v1.Pod { p := memberPod("g", 0, 1, 1); p.Spec.SchedulerName = "other"; return p }()},
	} {
		_, err := w.station.Preview(w.ctx, pods)
		var bad *InvalidError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// Questions and placements come at once; each answer is of one moment.
func TestPreviewsWhilePlacing(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 8), node("b", 8))
	w.attempted()
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 25 {
				got, err := w.station.Preview(w.ctx, gangOf("asked", 2, 8))
				if err != nil || got.Nodes != 2 || (got.Placement.Placed && strings.Join(got.Placement.Nodes, " ") != "a b") {
					t.Errorf("answer %+v, %v", got, err)
				}
			}
		}()
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
