package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/check"
)

// TestNodesTellWhatTheyPassed: the usual speeds are of all nodes, of each one the newest per model.
func TestNodesTellWhatTheyPassed(t *testing.T) {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	nodes := map[string]string{
		"n1": `[{"namespace":"a","gang":"g","at":"2020-01-01T00:00:00.000000Z","model":"H200","alone":9},{"namespace":"a","gang":"h","at":"` + now + `","model":"H200","alone":1,"pair":4}]`,
		"n2": `[{"namespace":"a","gang":"g","at":"2020-01-01T00:00:00.000000Z","model":"H200","alone":2,"pair":4}]`,
		"n3": `[{"namespace":"a","gang":"g","at":"` + now + `","model":"H200","alone":3,"pair":4}]`,
		"n4": `[{"namespace":"a","gang":"g","at":"` + now + `","model":"H200","alone":4},{"namespace":"a","gang":"h","at":"` + now + `","model":"A100","alone":4}]`,
		"n5": `{`,
	}
	var all []client.Object
	for name, passes := range nodes {
		has := map[string]string{v1alpha1.AnnotationPasses: passes}
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: has}})
	}
	known, err := newBench(t, all...).Nodes(t.Context(), []string{"n1", "n2", "n5", "n6"})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]elastic.NodeKnown{"n1": {Passed: true}, "n2": {}, "n5": {}}; !maps.Equal(known.Nodes, want) {
		t.Errorf("nodes %+v", known.Nodes)
	}
	if want := map[string]check.Usual{"H200": {Alone: 3}}; !maps.Equal(known.Usual, want) {
		t.Errorf("usual speeds %+v", known.Usual)
	}
}

// TestPassesAreWritten: with gang and speeds; one that fails prevents no other.
func TestPassesAreWritten(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	var written []v1alpha1.NodePass
	b.Pass = func(_ context.Context, node string, p v1alpha1.NodePass) error {
		mu.Lock()
		defer mu.Unlock()
		if node == "n1" {
			return errors.New("refused")
		}
		written = append(written, p)
		return nil
	}
	speed := check.Usual{Alone: 2, Pair: 1}
	b.NotePasses(t.Context(), key, []elastic.NodePass{{Node: "n1"}, {Node: "n2", Devices: 8, Model: "H200", Speed: speed}})
	want := v1alpha1.NodePass{Namespace: key.Namespace, Gang: key.Name, Devices: 8, Model: "H200", Alone: 2, Pair: 1}
	if !slices.Equal(written, []v1alpha1.NodePass{want}) {
		t.Errorf("written %+v", written)
	}
}
