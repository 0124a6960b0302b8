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
)

// TestExpected: only the label that counts GPUs is taken, and only where it does count GPUs. A change is told once.
func TestExpected(t *testing.T) {
	c := &clocked{node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	var told []string
	answers := 0
	w := New(Options{Client: &http.Client{Transport: c}, Server: "http://server", Node: "n1", Log: slog.New(slog.DiscardHandler),
		Expected: func(gpus int, by string) { told = append(told, fmt.Sprint(gpus, " ", by)) }, Answered: func() { answers++ }})
	labels := []map[string]string{
		nil, {labelCount: "8"}, {labelCount: "8", labelStrategy: "mixed"}, {labelCount: "56", labelStrategy: "single"}, {labelCount: "7"}, {labelCount: "many"}, {labelCount: "-1"},
	}
	for _, l := range labels {
		c.node.Labels = l
		if _, err := w.Load(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"8 label nvidia.com/gpu.count", "0 ", "7 label nvidia.com/gpu.count", "0 "}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if answers != len(labels) {
		t.Errorf("%d answers were told of, want %d", answers, len(labels))
	}
}
