package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

// TestSystemsRunInTheSamePods: jobs of systems differ only by the named things; otherwise figures are not comparable.
func TestSystemsRunInTheSamePods(t *testing.T) {
	for _, sh := range full.shapes {
		want := jobFor(systems[systemTorchrun], sh, 5)
		for _, name := range []string{systemHoldfast, systemCold, systemAsComes} {
			got := jobFor(systems[name], sh, 5)
			for key := range got.Annotations {
				if sh.plain() && key != v1alpha1.AnnotationEnabled ||
					key != v1alpha1.AnnotationEnabled && key != v1alpha1.AnnotationStateSize && key != v1alpha1.AnnotationRanks &&
						key != v1alpha1.AnnotationStandbys {
					t.Errorf("%s: annotation %s", name, key)
				}
			}
			pod, of := got.Spec.Template.Spec, want.Spec.Template.Spec
			if line := torchrunLine(got.Name, sh); pod.Containers[0].Command[2] != line {
				t.Errorf("%s runs %q, not %q", name, pod.Containers[0].Command[2], line)
			}
			pod.Containers[0].Command, of.Containers[0].Command = nil, nil
			if name == systemAsComes { // the other torchrun differs by this variable
				of.Containers[0].Env = slices.DeleteFunc(slices.Clone(of.Containers[0].Env), func(e corev1.EnvVar) bool { return e.Name == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" })
			}
			if systems[name].holdfast() {
				// the variable for torchrun's store is absent
				pod.Containers[0].Env = append(slices.Clone(pod.Containers[0].Env), systems[systemTorchrun].env...)
			}
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
	o := options{systems: figure.OneOf(full.systems...), shapes: figure.OneOf("1x4", "2x2"), kills: 2, Common: figure.Common{Quick: true}}
	if err := errors.Join(o.systems.Set("holdfast"), o.shapes.Set("2x2")); err != nil {
		t.Fatal(err)
	}
	p, err := o.plan()
	if err != nil || len(p.systems) != 1 || p.shapes[0] != twoPods || p.kills != 2 || len(p.loads) != 1 {
		t.Fatalf("plan = %+v, %v", p, err)
	}
	for quick, want := range map[bool]int{false: 5, true: 1} {
		if p, err := (options{Common: figure.Common{Quick: quick}}).plan(); err != nil || p.kills != want {
			t.Errorf("quick %t: %d kills, %v", quick, p.kills, err)
		}
	}
}

// TestRefusedOptions: an option without effect is refused before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--kills=0"}, Want: `for "--kills" flag: give a whole number, at least 1`},
		{Args: []string{"--systems=volcano"}, Want: `there is no "volcano": name some of limit, torchrun,`},
		{Args: []string{"--shapes="}, Want: `there is no "": name some of 1x4, 2x2, plain`},
		{Args: []string{"--shapes=plain", "--systems=limit"}, Want: "--systems: a plain script is measured under holdfast and torchrun"},
		{Args: []string{"--source="}, Want: `for "--source" flag: give a path`},
		{Args: []string{"--kills=2", "--systems=torchrun as it comes"}, Want: "--kills: one kill"},
		{Args: []string{"1x4"}, Want: `unknown command "1x4"`},
	})
}

func TestAPlainScriptKnowsNothing(t *testing.T) {
	if got := plain.loads(full.loads); len(got) != 1 || got[0] != busy {
		t.Errorf("loads = %v; first standbys warm up on busy cores", got)
	}
	if strings.Contains(strings.SplitN(plainScript, `"""`, 3)[2], "oldfast") {
		t.Error("the plain script knows of Holdfast")
	}
}

// TestTurns: one job at a time, and each system comes as early as it comes late.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		shape   shape
		systems []string
		kills   int
		want    string
	}{
		{onePod, full.systems, 5, "[{limit 0 0} {torchrun 3 0} {holdfast-cold 3 0} {holdfast 3 0} {holdfast 2 3} {holdfast-cold 2 3} {torchrun 2 3} {torchrun as it comes 0 0}]"},
		{twoPods, full.systems, 4, "[{limit 0 0} {torchrun 2 0} {holdfast-cold 2 0} {holdfast 2 0} {holdfast 2 2} {holdfast-cold 2 2} {torchrun 2 2}]"},
		{plain, full.systems, 2, "[{torchrun 1 0} {holdfast 1 0} {holdfast 1 1} {torchrun 1 1}]"},
		{onePod, quick.systems, 1, "[{limit 0 0} {torchrun 1 0} {holdfast 1 0}]"},
		{plain, []string{systemLimit, systemAsComes}, 5, "[]"},
	} {
		p := plan{shapes: full.shapes, systems: c.systems, kills: c.kills}
		if got := fmt.Sprint(p.turns(c.shape)); got != c.want {
			t.Errorf("%s: %s, want %s", c.shape.name, got, c.want)
		}
	}
}
