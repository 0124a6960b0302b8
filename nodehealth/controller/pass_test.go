package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestPass: a pass of another gang ends the exclusion for a gang's word; the next gang is checked there nevertheless.
func TestPass(t *testing.T) {
	w := newWorld(t, 3)
	w.decide()
	pass := v1alpha1.NodePass{Namespace: "team", Gang: "bert", Devices: 8, Model: "H200", Alone: 6e14, Pair: 3e10}
	if err := w.c.Pass(t.Context(), "n2", pass); err != nil {
		t.Fatal(err)
	}
	if k := KnownOf(w.node("n2"), w.now); !k.Passed || len(k.Passes) != 1 || k.Passes[0].Alone != 6e14 || k.Accusations != 0 {
		t.Errorf("known %+v", k)
	}
	w.now = w.now.Add(time.Second)
	done := make(chan error)
	go func() {
		done <- w.c.Suspect(t.Context(), "n2", v1alpha1.NodeSuspicion{Namespace: "red", Gang: "llama", Cause: "NodeCheckFailed", Proven: true})
	}()
	for w.node("n2").Annotations[v1alpha1.AnnotationSuspicions] == "" {
		time.Sleep(time.Millisecond)
	}
	w.decide()
	if err := <-done; err != nil || !hasOutage(w.node("n2")) {
		t.Fatalf("not excluded, %v", err)
	}
	w.now = w.now.Add(time.Second)
	if err := w.c.Pass(t.Context(), "n2", pass); err != nil {
		t.Fatal(err)
	}
	w.decide()
	if hasOutage(w.node("n2")) {
		t.Errorf("still excluded: %v", w.node("n2").Annotations)
	}
	if k := KnownOf(w.node("n2"), w.now); k.Passed || k.Accusations != 1 {
		t.Errorf("known %+v", k)
	}
	if err := w.c.Pass(t.Context(), "n9", pass); err != nil {
		t.Errorf("a node that is gone: %v", err)
	}
}

// TestPassesAreBounded: one per gang, none for longer than speeds are kept, and no namespace displaces those of another.
func TestPassesAreBounded(t *testing.T) {
	node, now := &corev1.Node{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	node.Annotations = map[string]string{v1alpha1.AnnotationPasses: "{"}
	put := func(namespace, gang string) {
		t.Helper()
		now = now.Add(time.Second)
		if err := putPass(node, v1alpha1.NodePass{Namespace: namespace, Gang: gang, Model: strings.Repeat("x", 1000)}, now); err != nil {
			t.Fatal(err)
		}
	}
	put("blue", "bert")
	put("blue", "bert")
	for i := range 50 {
		put("red", fmt.Sprint("gang", i))
	}
	list, err := v1alpha1.NodePassesOf(node)
	if err != nil || len(list) != v1alpha1.MaxPasses || list[0].Namespace != "blue" || len(list[1].Model) != maxModel {
		t.Errorf("%d passes, %v: %+v", len(list), err, list)
	}
	if k := KnownOf(node, now); k.Passes[0].Gang != "gang49" || !k.Passed || KnownOf(node, now.Add(24*time.Hour)).Passed {
		t.Errorf("newest %+v", k.Passes[0])
	}
	now = now.Add(speedMemory)
	put("green", "bert")
	if list, _ = v1alpha1.NodePassesOf(node); len(list) != 1 {
		t.Errorf("old passes are kept: %+v", list)
	}
}
