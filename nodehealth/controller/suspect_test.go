package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestSuspect: a gang's word excludes the node before Suspect returns, once, and for its time only.
func TestSuspect(t *testing.T) {
	w := newWorld(t, 3)
	w.decide()
	s := v1alpha1.NodeSuspicion{Namespace: "team", Gang: "llama", Cause: "HardwareSuspected", Message: "BusError again"}
	done := make(chan error)
	go func() { done <- w.c.Suspect(t.Context(), "n2", s) }()
	for i := range 2 {
		for w.node("n2").Annotations[v1alpha1.AnnotationSuspicions] == "" {
			time.Sleep(time.Millisecond)
		}
		if i == 0 {
			select {
			case err := <-done:
				t.Fatalf("returned before the node was excluded: %v", err)
			case <-time.After(5 * decisionPoll):
			}
		}
		w.decide()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text := w.node("n2").Annotations[v1alpha1.AnnotationOutage]
	if !strings.Contains(text, `"Exclude","cause":"NodeSuspected"`) || strings.Contains(text, "llama") || strings.Contains(text, "BusError") {
		t.Errorf("n2 has %q", text)
	}
	patches := len(w.patches)
	if err := w.c.Suspect(t.Context(), "n2", s); err != nil || len(w.patches) != patches {
		t.Errorf("again: %v, patches %v", err, w.patches[patches:])
	}
	w.now = w.now.Add(suspectedFor)
	w.renew("n1", "n2", "n3")
	w.decide()
	if n := w.node("n2"); hasOutage(n) {
		t.Errorf("still excluded: %v", n.Annotations)
	}
	if err := w.c.Suspect(context.Background(), "n9", s); err != nil {
		t.Errorf("a node that is gone: %v", err)
	}
}

// TestSuspicionsAreBounded: a namespace that suspects a node under many names displaces no word of another.
func TestSuspicionsAreBounded(t *testing.T) {
	node, now := &corev1.Node{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	put := func(namespace, gang string, proven bool) {
		t.Helper()
		now = now.Add(time.Second)
		s := v1alpha1.NodeSuspicion{Namespace: namespace, Gang: gang, Cause: "ComputeWrong", Message: strings.Repeat("x", 1000), Proven: proven}
		if _, err := putSuspicion(node, s, now); err != nil {
			t.Fatal(err)
		}
	}
	put("blue", "bert", true)
	for i := range 100 {
		put("red", fmt.Sprint("gang", i), true)
	}
	put("blue", "bert", false) // a weaker word does not replace the proof
	list, err := v1alpha1.NodeSuspicionsOf(node)
	blue := len(list) > 1 && list[0].Namespace == "blue" && list[0].Proven
	if err != nil || len(list) != v1alpha1.MaxSuspicions || !blue || len(list[1].Message) != maxSuspicion {
		t.Errorf("%d suspicions, %v: %+v", len(list), err, list)
	}
	now = now.Add(provenFor + time.Hour)
	slow := v1alpha1.NodeSuspicion{Namespace: "white", Gang: "bert", Cause: v1alpha1.CauseNodeSlow}
	other := &corev1.Node{}
	if _, err := putSuspicion(other, slow, now); err != nil {
		t.Fatal(err)
	}
	if list, _ = v1alpha1.NodeSuspicionsOf(other); list[0].Until.Sub(now) != provenFor {
		t.Errorf("a slow node is excluded for %s", list[0].Until.Sub(now))
	}
	stranger := v1alpha1.NodeSuspicion{Namespace: "white", Gang: "gpt", Cause: v1alpha1.CauseNodeSlow}
	if changed, err := dropSuspicion(other, stranger); changed || err != nil {
		t.Errorf("the word of another gang is withdrawn, %v", err)
	}
	if changed, err := dropSuspicion(other, slow); !changed || err != nil || len(other.Annotations) > 0 {
		t.Errorf("not withdrawn: %v, %v", other.Annotations, err)
	}
	put("green", "bert", false)
	if list, _ = v1alpha1.NodeSuspicionsOf(node); len(list) != v1alpha1.MaxSuspicions {
		t.Errorf("proofs of the last weeks are dropped: %+v", list)
	}
	now = now.AddDate(0, 0, 29)
	put("green", "gpt", false)
	if list, _ = v1alpha1.NodeSuspicionsOf(node); len(list) != 1 {
		t.Errorf("old words are kept: %+v", list)
	}
	node.Annotations[v1alpha1.AnnotationSuspicions] = "{"
	if _, err := budgetNode(node, nil); err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationSuspicions) {
		t.Errorf("unreadable: %v", err)
	}
	put("green", "gpt", false)
	if n, err := budgetNode(node, nil); err != nil || len(n.Suspicions) != 1 {
		t.Errorf("written again: %+v, %v", n.Suspicions, err)
	}
}
