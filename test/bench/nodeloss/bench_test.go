package main

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

func TestMarks(t *testing.T) {
	m := newMarks()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	with := n.DeepCopy()
	with.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintUnhealthy, Value: "GPULost"}}
	for i, step := range []struct {
		node *corev1.Node
		want int64
	}{{n, 0}, {with, 1}, {with, 1}, {n, 0}, {with, 4}} {
		m.look(step.node, time.Unix(int64(i), 0))
		at, ok := m.tainted("n1", v1alpha1.TaintUnhealthy)
		if ok != (step.want > 0) || ok && at.Unix() != step.want {
			t.Errorf("look %d: tainted at %v, %t, want %d", i, at, ok, step.want)
		}
		if _, ok := m.tainted("n1", v1alpha1.TaintOutage); ok {
			t.Errorf("look %d: an outage", i)
		}
	}
}

// TestSystemsDifferByAnnotations: otherwise the comparison is not fair.
func TestSystemsDifferByAnnotations(t *testing.T) {
	plain, ours := trainJob(jobTorchrun), trainJob(jobHoldfast)
	if len(plain.Annotations) != 0 || ours.Annotations[v1alpha1.AnnotationEnabled] != "true" {
		t.Fatalf("annotations: %v and %v", plain.Annotations, ours.Annotations)
	}
	same := func(name string) *batchv1.Job {
		j := trainJob(name)
		j.Name, j.Annotations = "", nil
		c := &j.Spec.Template.Spec
		own := &c.Containers[0].Command[2]
		*own = strings.ReplaceAll(*own, name+"-0."+name+":", "first-pod:") // torchrun's arguments contain the job's name
		c.Subdomain, c.Volumes[2].PersistentVolumeClaim.ClaimName = "", strings.TrimSuffix(c.Volumes[2].PersistentVolumeClaim.ClaimName, name)
		return j
	}
	if a, b := same(jobTorchrun), same(jobHoldfast); !reflect.DeepEqual(a, b) {
		t.Errorf("the jobs differ by more than annotations and names:\n%v\n%v", a, b)
	}
	bare, trains := barePod("bare").Spec, plain.Spec.Template.Spec
	bare.Containers[0].Command = trains.Containers[0].Command
	if !reflect.DeepEqual(bare, trains) {
		t.Errorf("the bare pod differs by more than its command:\n%v\n%v", bare, trains)
	}
}

// TestRefusedOptions: an option without effect is refused before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--repeat=0"}, Want: `for "--repeat" flag: give a whole number, at least 1`},
		{Args: []string{"--repeat=-1"}, Want: `for "--repeat" flag: give a whole number, at least 1`},
		{Args: []string{"--nodes=0"}, Want: `for "--nodes" flag: give a whole number, at least 1`},
		{Args: []string{"--nodes=99"}, Want: "--nodes=99: give at least 100, or 10 with --quick"},
		{Args: []string{"--nodes=9", "--quick"}, Want: "--nodes=9: give at least 100, or 10 with --quick"},
		{Args: []string{"--nodes=100", "--cases=drain,bare"}, Want: "--nodes: none of the --cases has simulated nodes"},
		{Args: []string{"--repeat=2", "--cases=cordon"}, Want: "--repeat: none of the --cases is repeated"},
		{Args: []string{"--repeat=2", "--cases=bare,cordon"}, Want: "--repeat=2: case bare, the reference of others, is measured at least 3 times"},
		{Args: []string{"--cases=flood"}, Want: `there is no "flood": name some of bare, gpu-lost,`},
		{Args: []string{"--cases="}, Want: `there is no ""`},
		{Args: []string{"--source="}, Want: `for "--source" flag: give a path`},
		{Args: []string{"drain"}, Want: `unknown command "drain"`},
	})
}

// TestUnfinishedCasesHaveNoFigures: a case that fails or is interrupted keeps no figures.
func TestUnfinishedCasesHaveNoFigures(t *testing.T) {
	fails := errors.New("fails")
	for _, want := range []error{fails, context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		b := &bench{Set: newFigures(), progress: io.Discard}
		b.Add("done", systemHoldfast, faultToStep, "s", 1)
		err := b.measure(ctx, kase{name: "half", run: func(_ context.Context, b *bench) error {
			b.Add("half", systemHoldfast, faultToStep, "s", 1)
			if want == context.Canceled {
				cancel()
			}
			return fails
		}})
		cancel()
		if got := b.Cases(); !errors.Is(err, want) || len(got) != 1 || got[0] != "done" {
			t.Errorf("%v, want %v; cases %q", err, want, got)
		}
	}
}

// TestPhases: the wait for a dead node is not part of start, and the phases keep their sum.
func TestPhases(t *testing.T) {
	seen := time.Unix(100, 0)
	dead := v1alpha1.Replacement{Termination: v1alpha1.Termination{Dead: true, At: metav1.NewMicroTime(seen.Add(10 * time.Second))}}
	sick := v1alpha1.Replacement{Termination: v1alpha1.Termination{At: metav1.NewMicroTime(seen.Add(10 * time.Second))}}
	for _, c := range []struct {
		name string
		r    v1alpha1.Recovery
		want string
	}{
		{"dead", v1alpha1.Recovery{DecideMs: ptr.To[int64](200), StopMs: ptr.To[int64](800), ReplaceMs: ptr.To[int64](2000), StartMs: ptr.To[int64](12000), Replaced: []v1alpha1.Replacement{dead, sick}},
			"decide 200ms, stop 800ms, give_up 9s, replace 2s, start 3s"},
		{"dead, found so early", v1alpha1.Recovery{DecideMs: ptr.To[int64](200), StopMs: ptr.To[int64](9800), StartMs: ptr.To[int64](3000), Replaced: []v1alpha1.Replacement{dead}},
			"decide 200ms, stop 9.8s, start 3s"},
		{"the drain holds the decision", v1alpha1.Recovery{DecideMs: ptr.To[int64](900), DrainMs: ptr.To[int64](1000), StopMs: ptr.To[int64](1000), StartMs: ptr.To[int64](11000), Replaced: []v1alpha1.Replacement{dead}},
			"decide 900ms, drain 1s, stop 1s, give_up 8s, start 3s"},
		{"sick", v1alpha1.Recovery{DecideMs: ptr.To[int64](200), StopMs: ptr.To[int64](800), StartMs: ptr.To[int64](12000), Replaced: []v1alpha1.Replacement{sick}},
			"decide 200ms, stop 800ms, start 12s"},
	} {
		c.r.DetectedAt = metav1.NewMicroTime(seen)
		var got []string
		for _, p := range phases(&c.r) {
			got = append(got, p.name+" "+p.took.String())
		}
		if all := strings.Join(got, ", "); all != c.want {
			t.Errorf("%s: %s, want %s", c.name, all, c.want)
		}
	}
}

func TestReferenceIsMeasuredThreeTimes(t *testing.T) {
	for _, c := range []struct {
		asked figure.Count
		quick bool
		want  int
	}{{0, false, 3}, {1, false, 3}, {5, false, 5}, {0, true, 1}, {2, true, 3}} {
		if got := referenceTimes(c.asked, c.quick); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
