package kinds

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// FuzzKinds reads an object and a pod. An accepted object has slots without a gap, one for each place. Any other object is refused with a
// field and a remedy. No function changes its argument, and each write is one that an API server accepts.
func FuzzKinds(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		docs := append(strings.Split(string(text), "\n---\n"), "{}")
		object, err := yaml.YAMLToJSON([]byte(docs[0]))
		if err != nil {
			f.Fatal(err)
		}
		pod, err := yaml.YAMLToJSON([]byte(docs[1]))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(object, pod)
	}
	f.Fuzz(func(t *testing.T, object, pod []byte) {
		obj, p := &unstructured.Unstructured{}, &corev1.Pod{}
		if json.Unmarshal(object, &obj.Object) != nil || obj.Object == nil {
			return
		}
		_ = json.Unmarshal(pod, p)
		for _, kind := range all {
			play(t, kind, obj, p)
		}
	})
}

func play(t *testing.T, kind Kind, obj *unstructured.Unstructured, pod *corev1.Pod) {
	before := obj.DeepCopy()
	job, errs := kind.Read(obj)
	for _, e := range errs {
		if e.Field == "" || e.Detail == "" && !strings.Contains(e.Error(), "Duplicate") {
			t.Fatalf("%v names no field or no remedy", e)
		}
	}
	for _, w := range []Write{kind.Fail(obj, Failure{At: time.Unix(0, 0)}), kind.Fail(obj, Failure{At: time.Unix(0, 0), Now: true})} {
		_ = runtime.DeepCopyJSON(w.Patch) // panics for a value that JSON does not have
	}
	kind.State(obj)
	kind.Release(pod, obj)
	place, _ := kind.Place(pod)
	if slot, ok := job.Slot(place); len(errs) == 0 && ok && (slot < 0 || slot >= job.Members()) {
		t.Fatalf("slot %d of %d", slot, job.Members())
	}
	if !reflect.DeepEqual(before, obj) {
		t.Fatal("what was read has changed")
	}
	if len(errs) > 0 {
		return
	}
	if n := job.Members(); n < 1 || n > v1alpha1.MaxMembers {
		t.Fatalf("%d members are taken", n)
	}
	next := int32(0)
	for _, r := range job.Roles {
		for i := range r.Pods() {
			slot, ok := job.Slot(Place{Role: r.Name, Replica: i / r.Each, Index: i % r.Each})
			if ok == r.Before || ok && slot != next {
				t.Fatalf("pod %d of role %q has slot %d, %v; want %d", i, r.Name, slot, ok, next)
			}
			if ok {
				next++
			} else if i > 10 {
				break
			}
		}
	}
	kind.Admit(obj, Admission{Job: job, Minor: 37, Old: before})
	_ = runtime.DeepCopyJSON(obj.Object)
	again := obj.DeepCopy()
	kind.Admit(again, Admission{Job: job, Minor: 37, Old: before})
	if !reflect.DeepEqual(again, obj) {
		t.Fatal("admitted twice, written twice")
	}
	obj.Object = before.Object
}
