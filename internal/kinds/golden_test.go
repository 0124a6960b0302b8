package kinds

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/internal/golden"
)

// documents returns the objects of a file.
func documents(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, doc := range strings.Split(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

func asYAML(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestGolden: each file has an object and pods of it. The file beside it has what Holdfast reads from them.
func TestGolden(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		all := documents(t, text)
		obj := all[0]
		kind, ok := Of(obj.GroupVersionKind().GroupKind())
		if !ok {
			t.Fatalf("%s is of no kind", file)
		}
		out := &strings.Builder{}
		before := asYAML(t, obj.Object)
		job, errs := kind.Read(obj)
		for _, e := range errs {
			fmt.Fprintf(out, "refused: %v\n", e)
		}
		if asYAML(t, obj.Object) != before {
			t.Error("Read changed the object")
		}
		if len(errs) == 0 {
			answer(t, out, kind, obj, job)
		}
		for _, u := range all[1:] {
			place(t, out, job, u, obj)
		}
		golden.File(t, golden.Beside(file, ".txt"), out.String())
	})
}

// answer prints what the kind reads from an object.
func answer(t *testing.T, out *strings.Builder, kind Kind, obj *unstructured.Unstructured, job Job) {
	t.Helper()
	fmt.Fprintf(out, "%s %s, %d members\n", kind.Resource(), kind.GroupVersionKind().Group, job.Members())
	for i := range job.Roles {
		r := &job.Roles[i]
		first, _ := job.Slot(Place{Role: r.Name})
		what := fmt.Sprintf("slots from %d", first)
		if r.Before {
			what = "no members: ends before"
		}
		fmt.Fprintf(out, "role %q: %d x %d pods of %s, counted in %s, %s\n", r.Name, r.Replicas, r.Each, r.Template, r.Count, what)
		if r.Container == "" && len(r.Pod.Spec.Containers) > 0 {
			r.Container = r.Pod.Spec.Containers[0].Name
		}
		fmt.Fprintf(out, "  container %s, scheduler %q by %s\n", r.Container, r.Scheduler, r.SchedulerPath)
		for _, e := range r.Env {
			fmt.Fprintf(out, "  sets %s=%s later %v\n", e.Name, e.Value, e.ValueFrom != nil)
		}
	}
	admitted := obj.DeepCopy()
	for _, w := range kind.Admit(admitted, Admission{Job: job, Minor: 37}) {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	had := strings.Split(asYAML(t, obj.Object), "\n")
	for line := range strings.SplitSeq(asYAML(t, admitted.Object), "\n") {
		if !slices.Contains(had, line) {
			fmt.Fprintf(out, "written: %s\n", line)
		}
	}
	again := admitted.DeepCopy()
	if kind.Admit(again, Admission{Job: job, Minor: 37}); asYAML(t, again.Object) != asYAML(t, admitted.Object) {
		t.Error("Admit writes something else when it is called again")
	}
	stateOf(out, kind.State(obj))
	f := Failure{Reason: "MaxRestarts", Message: "rank 3 in slot 1 failed first", At: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	soon := kind.Fail(obj, f)
	f.Now = true
	now := kind.Fail(obj, f)
	if asYAML(t, soon) != asYAML(t, now) {
		writeOf(t, out, "fails in some seconds", soon)
	}
	writeOf(t, out, "fails", now)
	failed := patched(t, obj, now)
	got := kind.State(failed)
	if !got.Ended || !got.Failed {
		t.Errorf("after Fail the state is %+v", got)
	}
	if got.Final {
		fmt.Fprintf(out, "says then: %s\n", got.Message)
	}
}

func stateOf(out *strings.Builder, s State) {
	fmt.Fprintf(out, "state: {Ended:%v Failed:%v Suspended:%v}\n", s.Ended, s.Failed, s.Suspended)
	if s.Final {
		fmt.Fprintf(out, "says: %s\n", s.Message)
	}
}

func writeOf(t *testing.T, out *strings.Builder, what string, w Write) {
	t.Helper()
	fmt.Fprintf(out, "%s: status %v, evict %v, %s\n", what, w.Status, w.Evict, w.Type)
	for line := range strings.SplitSeq(strings.TrimSuffix(asYAML(t, w.Patch), "\n"), "\n") {
		fmt.Fprintf(out, "  %s\n", line)
	}
}

// patched returns an object after a write. Both types of patch merge maps, so the maps of the patch are merged into the object.
func patched(t *testing.T, obj *unstructured.Unstructured, w Write) *unstructured.Unstructured {
	t.Helper()
	var over func(a, b map[string]any)
	over = func(a, b map[string]any) {
		for key, value := range b {
			next, is := value.(map[string]any)
			had, was := a[key].(map[string]any)
			if is && was {
				over(had, next)
			} else {
				a[key] = value
			}
		}
	}
	after := obj.DeepCopy()
	over(after.Object, w.Patch)
	return after
}

// place prints the slot of a pod, its kind, and how the pod is released.
func place(t *testing.T, out *strings.Builder, job Job, u, obj *unstructured.Unstructured) {
	t.Helper()
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, pod); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(out, "pod %s:", pod.Name)
	found := 0
	for _, k := range all {
		p, ok := k.Place(pod)
		if !ok {
			continue
		}
		found++
		slot, member := job.Slot(p)
		fmt.Fprintf(out, " of %s %s %s, role %q, %d.%d: slot %d, member %v; %+v", Title(k), p.Name, p.Maker, p.Role, p.Replica, p.Index, slot, member, k.Release(pod, obj))
		if want := types.UID("uid"); p.Maker != want {
			t.Errorf("pod %s is of %s", pod.Name, p.Maker)
		}
	}
	fmt.Fprintf(out, " (%d kinds)\n", found)
	if found > 1 {
		t.Errorf("pod %s is of %d kinds", pod.Name, found)
	}
}

// TestEveryKindHasFiles: each kind has a file of an admitted and one of a refused object.
func TestEveryKindHasFiles(t *testing.T) {
	for _, k := range all {
		name := strings.ToLower(k.GroupVersionKind().Kind)
		if k.GroupVersionKind().Group == "batch.volcano.sh" {
			name = "volcano"
		}
		if files, err := filepath.Glob("testdata/" + name + "-*.yaml"); err != nil || len(files) < 2 {
			t.Errorf("%s has %v, %v", name, files, err)
		}
	}
}
