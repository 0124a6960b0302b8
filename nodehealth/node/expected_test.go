package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestExpected: only a label that counts GPUs is used. Each change is reported once.
func TestExpected(t *testing.T) {
	c := &clocked{node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	var told []string
	answers := 0
	w := New(Options{
		Client:   &http.Client{Transport: c},
		Server:   "http://server",
		Node:     "n1",
		Log:      slog.New(slog.DiscardHandler),
		Expected: func(gpus int, by string, final bool) { told = append(told, fmt.Sprint(gpus, " ", by, " ", final)) },
		Answered: func() { answers++ },
	})
	labels := []map[string]string{
		nil,
		{labelCount: "8"},
		{labelCount: "8", labelStrategy: "mixed"},
		{labelCount: "56", labelStrategy: "single"},
		{labelCount: "7"},
		{labelCount: "many"},
		{labelCount: "-1"},
	}
	look := func() {
		if _, err := w.Load(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range labels {
		c.node.Labels = l
		look()
	}
	c.node.Labels = map[string]string{labelCount: "8"}
	for _, people := range []string{"6", "six", "0"} {
		c.node.Annotations = map[string]string{v1alpha1.AnnotationGPUs: people}
		look()
	}
	c.node.Annotations = nil
	look()
	want := []string{"8 label nvidia.com/gpu.count false", "0  false", "7 label nvidia.com/gpu.count false", "0  false",
		"6 annotation holdfast.dev/gpus true", "0  false", "0 annotation holdfast.dev/gpus true", "8 label nvidia.com/gpu.count false"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if want := len(labels) + 4; answers != want {
		t.Errorf("%d answers were told of, want %d", answers, want)
	}
}
