package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

// TestText: each testdata/NAME.yaml is a Gang with its nodes; NAME.txt is the output.
func TestText(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		golden.File(t, golden.Beside(file, ".txt"), explained(t, text).Text())
	})
}

// explained parses a text of a Gang and its nodes.
func explained(t *testing.T, text string) Explanation {
	t.Helper()
	docs := strings.Split(text, "\n---\n")
	g := &v1alpha1.Gang{}
	if err := yaml.UnmarshalStrict([]byte(docs[0]), g); err != nil {
		t.Fatal(err)
	}
	nodes := make([]corev1.Node, len(docs)-1)
	for i, doc := range docs[1:] {
		if err := yaml.UnmarshalStrict([]byte(doc), &nodes[i]); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(NodesOf(g), nodes[i].Name) {
			t.Errorf("node %s would not be read", nodes[i].Name)
		}
	}
	return Of(g, nodes, nil, time.Date(2026, 11, 20, 12, 10, 0, 0, time.UTC))
}

// TestWhoSawASilentPod: the output does not call the pod's node faulty.
func TestWhoSawASilentPod(t *testing.T) {
	r := &v1alpha1.Recovery{
		Cause: v1alpha1.Cause{Code: v1alpha1.CausePodLost},
		Replaced: []v1alpha1.Replacement{
			{Termination: v1alpha1.Termination{Pod: "train-1", Node: "n1", Cause: v1alpha1.CauseAgentUnreachable, Dead: true}},
		},
	}
	if got := detected(r); got != "the coordinator: the agent of pod train-1 did not report" {
		t.Error(got)
	}
}

// TestSlotsWithoutPodsAreNamed: the output lists all slots for which the Gang has no pod, in order.
func TestSlotsWithoutPodsAreNamed(t *testing.T) {
	for want, c := range map[string]struct {
		members int32
		listed  []int32
	}{
		"":                            {3, []int32{0, 1, 2}},
		"slot 1":                      {3, []int32{0, 2}},
		"slots 0, 3 to 4":             {5, []int32{1, 2}},
		"slots 1 to 6, 8 to 4999":     {5000, []int32{0, 7}},
		"6 slots, such as 0, 2, 4, 6": {11, []int32{1, 3, 5, 7, 9}},
	} {
		e := Explanation{Members: c.members}
		for _, slot := range c.listed {
			e.Status.Members = append(e.Status.Members, v1alpha1.MemberStatus{Slot: slot})
		}
		if got := e.unlisted(); got != want {
			t.Errorf("%d slots, %v with a pod: %q, want %q", c.members, c.listed, got, want)
		}
	}
}
