package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/operators"
)

// TestSystemsDifferByAnnotation: both jobs of a kind have the same file but for the annotation, and for a kind whose file names its
// scheduler the scheduler. Otherwise the comparison is not fair.
func TestSystemsDifferByAnnotation(t *testing.T) {
	for _, k := range kinds {
		job := func(system string) *unstructured.Unstructured {
			text, err := k.manifest(system, "train", "n1")
			if err != nil {
				t.Fatal(err)
			}
			objects, err := operators.Decode([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			return objects[len(objects)-1]
		}
		own, ours := job(systemOwn), job(systemHoldfast)
		if len(own.GetAnnotations()) > 0 || !reflect.DeepEqual(ours.GetAnnotations(), map[string]string{"holdfast.dev/enabled": "true"}) {
			t.Errorf("%s: annotations %v and %v", k.name, own.GetAnnotations(), ours.GetAnnotations())
		}
		ours.SetAnnotations(map[string]string{})
		if k.scheduler != "" {
			if err := unstructured.SetNestedField(ours.Object, k.scheduler, "spec", "schedulerName"); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(own.Object, ours.Object) {
			t.Errorf("%s: the jobs differ:\n%v\n%v", k.name, own.Object, ours.Object)
		}
	}
}

// TestCollect: only complete lines are read, each once.
func TestCollect(t *testing.T) {
	tr := &trial{rec: lives.New(), events: filepath.Join(t.TempDir(), "events")}
	for _, text := range []string{
		`{"bench":"started","rank":1,"pid":7,"pod":"a","t":1}` + "\n" + `{"bench":"star`,
		`ted","rank":1,"pid":9,"pod":"b","t":2}` + "\n",
	} {
		file, err := os.OpenFile(tr.events, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if err := tr.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		pod, pid, ok := tr.rec.Newest(1)
		if want := map[bool]string{false: "a", true: "b"}[strings.HasPrefix(text, "ted")]; !ok || pod != want {
			t.Errorf("rank 1 is process %d of pod %q, want pod %q", pid, pod, want)
		}
	}
}

// TestRatios: a job that did not train again counts with the time that was waited for it.
func TestRatios(t *testing.T) {
	b := &bench{Set: figure.NewSet(benchName)}
	b.Add("Job", systemHoldfast, rankKilled+toStep, "s", 1, 3)
	b.Add("Job", systemOwn, rankKilled+toStep, "s", 20)
	b.Add("Job", systemHoldfast, nodeLost+toStep, "s", 9)
	b.Add("Job", systemOwn, nodeLost+notWithin, "s", 90)
	b.Add("JobSet", systemHoldfast, nodeLost+toStep, "s", 9)
	got := map[figure.Key]float64{}
	for _, f := range b.rows() {
		if f.Unit == figure.Times {
			got[figure.Key{Case: f.Case, System: f.System, Metric: f.Metric}] = f.Value
		}
	}
	want := map[figure.Key]float64{
		{Case: "Job", System: systemHoldfast, Metric: "rank_killed_vs_own"}: 0.1,
		{Case: "Job", System: systemHoldfast, Metric: "node_lost_vs_own"}:   0.1,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ratios %v, want %v", got, want)
	}
}

// TestRefusedOptions: an option without effect is refused before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--kinds=MPIJob"}, Want: `there is no "MPIJob": name some of Job, JobSet, PyTorchJob, Volcano Job`},
		{Args: []string{"--repeat=0"}, Want: `for "--repeat" flag: give a whole number, at least 1`},
		{Args: []string{"--wait=-1"}, Want: `for "--wait" flag: give a whole number, at least 1`},
		{Args: []string{"Job"}, Want: `unknown command "Job"`},
	})
}
