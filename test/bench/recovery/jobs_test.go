package main

import (
	"reflect"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The figures compare systems only if nothing but the named things differs between their jobs.
func TestSystemsRunInTheSamePods(t *testing.T) {
	for _, sh := range full.shapes {
		want := jobFor(systems[systemTorchrun], sh, 5)
		for _, name := range []string{systemHoldfast, systemCold, systemAsComes} {
			got := jobFor(systems[name], sh, 5)
			for key := range got.Annotations {
				if key != v1alpha1.AnnotationEnabled && key != v1alpha1.AnnotationStateSize && key != v1alpha1.AnnotationRanks && key != v1alpha1.AnnotationStandbys {
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
	p, err := options{systems: []string{"holdfast"}, shapes: []string{"2x2"}, kills: 2, quick: true}.plan()
	if err != nil || len(p.systems) != 1 || p.shapes[0] != twoPods || p.kills != 2 || len(p.loads) != 1 {
		t.Fatalf("plan = %+v, %v", p, err)
	}
	if _, err := (options{systems: []string{"volcano"}}).plan(); err == nil {
		t.Fatal("an unknown system was taken")
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
		if got := inTurns(c.systems); !reflect.DeepEqual(got, c.want) {
			t.Errorf("inTurns(%q) = %q, want %q", c.systems, got, c.want)
		}
	}
}
