package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/nodes"
)

// TestJSONPath: -o jsonpath prints a part by its name in JSON, with braces or without.
func TestJSONPath(t *testing.T) {
	value := map[string]any{"status": map[string]any{"step": 7, "phase": "Running"}}
	for format, want := range map[string]string{
		"jsonpath={.status.step}": "7\n", "jsonpath=.status.phase": "Running\n", "jsonpath={.none}": "\n", "jsonpath={.status.phase} {.status.step}": "Running 7\n",
	} {
		var b bytes.Buffer
		o := &output{format: format, texts: []string{"text"}}
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
		if err := o.print(&b, value, nil); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, b.String(), err, want)
		}
	}
}

// TestFollow: without -w one answer is printed; with it each version once, until the context ends.
func TestFollow(t *testing.T) {
	for _, watch := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		var b bytes.Buffer
		versions := []string{"a", "a", "b"}
		o := &output{format: "text", texts: []string{"text"}}
		n := 0
		err := o.follow(ctx, &b, watch, func(context.Context) (shown, error) {
			if n++; n == len(versions) {
				cancel()
			}
			return shown{nil, versions[n-1], func(string) string { return versions[n-1] + "\n" }}, nil
		})
		cancel()
		if want := map[bool]string{false: "a\n", true: "a\n\nb\n"}[watch]; err != nil || b.String() != want {
			t.Errorf("watch %v: %q, %v; want %q", watch, b.String(), err, want)
		}
	}
}

// cluster has two Gangs of labelled jobs, a node and a pod of a gang.
func cluster(t *testing.T) client.Client {
	t.Helper()
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	gang := func(namespace, name string) *v1alpha1.Gang {
		return &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.GangSpec{
			JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: name}}}
	}
	job := func(namespace, name, team string) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "", Labels: map[string]string{"team": team}}}
	}
	a, b := job("x", "train", "vision"), job("y", "other", "speech")
	a.UID, b.UID = "train", "other"
	return fake.NewClientBuilder().WithScheme(s).WithObjects(gang("x", "train"), gang("y", "other"), a, b,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "train-0", Labels: map[string]string{v1alpha1.LabelGang: "train"}},
			Spec: corev1.PodSpec{NodeName: "n1"}}).Build()
}

// TestChosen: -A and -l choose Gangs by namespace and by the labels of their jobs.
func TestChosen(t *testing.T) {
	c := cluster(t)
	for want, q := range map[string]explaining{
		"x/train y/other": {all: true}, "x/train": {all: true, selector: "team=vision"}, "": {selector: "team=speech"}, "y/other": {all: true, selector: "team!=vision"},
	} {
		gangs, err := q.chosen(t.Context(), c, "x")
		var got []string
		for i := range gangs {
			got = append(got, gangs[i].Namespace+"/"+gangs[i].Name)
		}
		slices.Sort(got)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%+v: %v, %v; want %q", q, got, err, want)
		}
	}
}

// TestNames: -o name prints what other commands accept; of nodes those that need a look, or all.
func TestNames(t *testing.T) {
	c := cluster(t)
	s, err := explaining{all: true}.read(t.Context(), c, "x")
	if err != nil || s.text(nameFormat) != "gang.holdfast.dev/train\ngang.holdfast.dev/other\n" {
		t.Errorf("%q, %v", s.text(nameFormat), err)
	}
	in, err := readNodes(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	report := nodes.Of(in, time.Now())
	if all, some := lines(report.Names(true)), lines(report.Names(false)); all != "node/n1\n" || some != "" {
		t.Errorf("%q, %q", all, some)
	}
}

// TestCompletion: names of jobs, Gangs, nodes and pods that begin with what was typed.
func TestCompletion(t *testing.T) {
	c := cluster(t)
	for _, k := range []struct {
		names func(context.Context, client.Client, string) ([]string, error)
		begun string
		want  string
	}{
		{jobNames, "", "gang/train job/train"}, {jobNames, "job/", "job/train"}, {jobNames, "job/x", ""},
		{nodeNames, "", "node/n1 pod/train-0"}, {nodeNames, "p", "pod/train-0"},
	} {
		names, err := k.names(t.Context(), c, "x")
		if got := strings.Join(begin(names, k.begun), " "); err != nil || got != k.want {
			t.Errorf("%q: %q, %v; want %q", k.begun, got, err, k.want)
		}
	}
}
