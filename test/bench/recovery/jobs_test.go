package main

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// The figures compare systems only if nothing but the named things differs between their jobs.
func TestSystemsRunInTheSamePods(t *testing.T) {
	for _, sh := range full.shapes {
		want := jobFor(systems[systemTorchrun], sh, 5)
		for _, name := range []string{systemHoldfast, systemCold, systemAsComes} {
			got := jobFor(systems[name], sh, 5)
			for key := range got.Annotations {
				if sh.plain() && key != v1alpha1.AnnotationEnabled || key != v1alpha1.AnnotationEnabled && key != v1alpha1.AnnotationStateSize && key != v1alpha1.AnnotationRanks && key != v1alpha1.AnnotationStandbys {
					t.Errorf("%s: annotation %s", name, key)
				}
			}
			pod, of := got.Spec.Template.Spec, want.Spec.Template.Spec
			if line := torchrunLine(got.Name, sh); pod.Containers[0].Command[2] != line {
				t.Errorf("%s runs %q, not %q", name, pod.Containers[0].Command[2], line)
			}
			pod.Containers[0].Command, of.Containers[0].Command = nil, nil
			pod.Containers[0].Env, of.Containers[0].Env = pod.Containers[0].Env[:4], of.Containers[0].Env[:4]
			pod.Subdomain, of.Subdomain = "", ""
			pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = nil
			of.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = nil
			if !reflect.DeepEqual(pod, of) {
				t.Errorf("%s, %s: another pod than torchrun's", sh.name, name)
			}
		}
	}
}

func TestPlan(t *testing.T) {
	o := options{systems: figure.OneOf(full.systems...), shapes: figure.OneOf("1x4", "2x2"), kills: 2, quick: true}
	if err := errors.Join(o.systems.Set("holdfast"), o.shapes.Set("2x2")); err != nil {
		t.Fatal(err)
	}
	p, err := o.plan()
	if err != nil || len(p.systems) != 1 || p.shapes[0] != twoPods || p.kills != 2 || len(p.loads) != 1 {
		t.Fatalf("plan = %+v, %v", p, err)
	}
	for quick, want := range map[bool]int{false: 5, true: 1} {
		if p, err := (options{quick: quick}).plan(); err != nil || p.kills != want {
			t.Errorf("quick %t: %d kills, %v", quick, p.kills, err)
		}
	}
}

// Every option acts or is refused, before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--kills=0"}, Want: `for "--kills" flag: give a whole number, at least 1`},
		{Args: []string{"--systems=volcano"}, Want: `there is no "volcano": name some of limit, torchrun,`},
		{Args: []string{"--shapes="}, Want: `there is no "": name some of 1x4, 2x2, plain`},
		{Args: []string{"--shapes=plain", "--systems=limit"}, Want: "--systems: a plain script is measured under holdfast and torchrun"},
		{Args: []string{"--kubeconfig="}, Want: `for "--kubeconfig" flag: give a path`},
		{Args: []string{"--source="}, Want: `for "--source" flag: give a path`},
		{Args: []string{"--kubeconfig=k", "--keep"}, Want: "--keep: no cluster is started"},
		{Args: []string{"--kubeconfig=k", "--source=."}, Want: "--source: nothing is started"},
		{Args: []string{"--kills=2", "--systems=torchrun as it comes"}, Want: "--kills: one kill"},
		{Args: []string{"1x4"}, Want: `unknown command "1x4"`},
	})
}

func TestAPlainScriptHasTwoSystemsInTurns(t *testing.T) {
	if got := plain.inTurns(full.systems); !reflect.DeepEqual(got, [][]string{{systemHoldfast, systemTorchrun}}) {
		t.Errorf("inTurns = %q", got)
	}
	if got := plain.loads(full.loads); len(got) != 1 || got[0] != busy {
		t.Errorf("loads = %v; first standbys warm up on busy cores", got)
	}
	if strings.Contains(strings.SplitN(plainScript, `"""`, 3)[2], "oldfast") {
		t.Error("the plain script knows of Holdfast")
	}
}

func TestSystemsInTurns(t *testing.T) {
	for _, c := range []struct {
		systems []string
		want    [][]string
	}{
		{full.systems, [][]string{{systemLimit}, {systemTorchrun, systemCold}, {systemHoldfast}, {systemAsComes}}},
		{[]string{systemHoldfast, systemCold}, [][]string{{systemHoldfast}, {systemCold}}},
		{[]string{systemTorchrun}, [][]string{{systemTorchrun}}},
	} {
		if got := onePod.inTurns(c.systems); !reflect.DeepEqual(got, c.want) {
			t.Errorf("inTurns(%q) = %q, want %q", c.systems, got, c.want)
		}
	}
}
