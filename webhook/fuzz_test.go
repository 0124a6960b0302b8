package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/seeds"
)

// FuzzPod: any pod is refused, or a second admission does not change it.
func FuzzPod(f *testing.F) {
	for _, pod := range []*corev1.Pod{podOf(admitted(f, job(f))), injected(f, job(f)), {}} {
		text, err := json.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	noCommand := injected(f, job(f))
	noCommand.Spec.Containers[0].Command = nil
	text, err := json.Marshal(noCommand)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		pod := &corev1.Pod{}
		if json.Unmarshal(text, pod) != nil {
			return
		}
		once := MutatePod(t.Context(), pod, config)
		if len(once.Errors) > 0 {
			return
		}
		twice := MutatePod(t.Context(), once.Object, config)
		if len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(once.Object, twice.Object) {
			t.Fatalf("injecting twice differs: %s", said(twice))
		}
	})
}

// FuzzJob: any Job is refused, or a second admission does not change it.
func FuzzJob(f *testing.F) {
	for _, j := range []*batchv1.Job{job(f), admitted(f, job(f)), {}} {
		text, err := json.Marshal(j)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		j := &batchv1.Job{}
		if json.Unmarshal(text, j) != nil {
			return
		}
		once := createJob(t.Context(), j, Facts{})
		if len(once.Errors) > 0 {
			return
		}
		twice := createJob(t.Context(), once.Object, Facts{})
		if len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(once.Object, twice.Object) {
			t.Fatalf("the second call differs: %s", said(twice))
		}
	})
}

// TestDamagedObjects removes random parts of objects. The objects are still refused, or unchanged by a second admission.
func TestDamagedObjects(t *testing.T) {
	for seed := range seeds.All(t, uint64(400)) {
		r := rand.New(rand.NewPCG(seed, 2))
		for _, from := range []any{podOf(admitted(t, job(t))), injected(t, job(t))} {
			pod := &corev1.Pod{}
			damage(t, r, from, pod)
			if once := MutatePod(t.Context(), pod, config); len(once.Errors) == 0 {
				if twice := MutatePod(t.Context(), once.Object, config); len(twice.Errors) > 0 ||
					!equality.Semantic.DeepEqual(once.Object, twice.Object) {
					t.Fatalf("seed %d: injecting twice differs: %s", seed, said(twice))
				}
			}
		}
		j := &batchv1.Job{}
		damage(t, r, job(t), j)
		o := takeApart(kinds.BatchJob{}, objectOf(j))
		o.prepare(nil)
		Cluster{Images: noImages}.gatherFacts(t.Context(), o, nil, "ns")
		if once := createJob(t.Context(), j, Facts{}); len(once.Errors) == 0 {
			if twice := createJob(t.Context(), once.Object, Facts{}); len(twice.Errors) > 0 ||
				!equality.Semantic.DeepEqual(once.Object, twice.Object) {
				t.Fatalf("seed %d: admitting twice differs: %s", seed, said(twice))
			}
		}
	}
}

// noImages is a registry that cannot be reached.
func noImages(context.Context, ImageQuery) (ImageProcess, error) {
	return ImageProcess{}, errors.New("no registry")
}

// damage writes the object from into to, without some of its parts.
func damage(t *testing.T, r *rand.Rand, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(thinned(r, tree))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatal(err)
	}
}

// thinned returns the tree without one part in thirty.
func thinned(r *rand.Rand, tree any) any {
	switch node := tree.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if r.IntN(30) == 0 {
				delete(node, key)
				continue
			}
			node[key] = thinned(r, node[key])
		}
	case []any:
		kept := []any{}
		for _, item := range node {
			if r.IntN(30) != 0 {
				kept = append(kept, thinned(r, item))
			}
		}
		return kept
	}
	return tree
}
