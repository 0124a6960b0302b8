package webhook

import (
	"maps"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/settings"
)

func scheduledBy(name string) func(*batchv1.Job) {
	return podSpec(func(s *corev1.PodSpec) { s.SchedulerName = name })
}

// TestForeignSchedulers: where another scheduler places the pods, settings that only Holdfast's scheduler carries out are refused, or a
// warning says that they have no effect.
func TestForeignSchedulers(t *testing.T) {
	values := map[string]string{
		v1alpha1.AnnotationTopologyRequired:  "rack",
		v1alpha1.AnnotationTopologyPreferred: "rack",
		v1alpha1.AnnotationSliceLevel:        "nvlink",
		v1alpha1.AnnotationSliceSize:         "2",
		v1alpha1.AnnotationSliceShape:        "uneven",
		v1alpha1.AnnotationBlockSize:         "2",
		v1alpha1.AnnotationSpares:            "1",
		v1alpha1.AnnotationWholeNodes:        "true",
		v1alpha1.AnnotationProvisioningClass: "atomic",
	}
	all := func(j *batchv1.Job) { maps.Copy(j.Annotations, values) }
	var b strings.Builder
	for _, c := range []struct {
		name   string
		change []func(*batchv1.Job)
	}{
		{"Volcano", nil},
		{"Volcano, asked for nothing", []func(*batchv1.Job){
			annotate(v1alpha1.AnnotationWholeNodes, "false"),
			annotate(v1alpha1.AnnotationSpares, "0"),
		}},
		{"Volcano, all keys of placement", []func(*batchv1.Job){all}},
		{"Volcano, one on the template", []func(*batchv1.Job){annotateTemplate(v1alpha1.AnnotationSpares, "1")}},
		{"Volcano, run-time", []func(*batchv1.Job){annotate(v1alpha1.AnnotationRunTime, "36h")}},
		{"Volcano, a minimum that is not all", []func(*batchv1.Job){annotate("scheduling.volcano.sh/group-min-member", "1")}},
		{"Volcano, a minimum that is all", []func(*batchv1.Job){annotate("scheduling.volcano.sh/group-min-member", "2")}},
		{"another", []func(*batchv1.Job){scheduledBy("team-scheduler")}},
		{"another, all keys of placement", []func(*batchv1.Job){all, scheduledBy("team-scheduler")}},
		{"ours, all keys of placement", []func(*batchv1.Job){all, scheduledBy(v1alpha1.SchedulerName)}},
		{"the default, all keys of placement", []func(*batchv1.Job){all, scheduledBy(corev1.DefaultSchedulerName)}},
	} {
		changes := append([]func(*batchv1.Job){scheduledBy("volcano")}, c.change...)
		b.WriteString("# " + c.name + "\n" + said(createJob(t.Context(), job(t, changes...), Facts{})))
	}
	golden.File(t, "testdata/foreign.txt", b.String())
	asked := slices.Sorted(maps.Keys(ofVolcano))
	want := append(settings.TopologyKeys(), v1alpha1.AnnotationProvisioningClass)
	if slices.Sort(want); !slices.Equal(asked, want) {
		t.Errorf("Volcano's fields are known for %q, there are %q", asked, want)
	}
	if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, asked) {
		t.Errorf("tried are %q of %q", got, asked)
	}
}

// TestGroupsOfUsersStay: a pod that names a PodGroup, or its task in it, keeps both.
func TestGroupsOfUsersStay(t *testing.T) {
	own := map[string]string{"scheduling.k8s.io/group-name": "theirs", "volcano.sh/task-spec": "trainer"}
	pod := injected(t, job(t, scheduledBy("volcano"), podSpecMeta(func(m *metav1.ObjectMeta) { m.Annotations = maps.Clone(own) })))
	for key, value := range own {
		if pod.Annotations[key] != value {
			t.Errorf("%s is %q, was %q", key, pod.Annotations[key], value)
		}
	}
	for _, scheduler := range []string{"", "team-scheduler"} {
		if pod := injected(t, job(t, scheduledBy(scheduler))); pod.Annotations["scheduling.k8s.io/group-name"] != "" {
			t.Errorf("scheduler %q: the pod names a PodGroup: %v", scheduler, pod.Annotations)
		}
	}
}

// TestACopyIsInNoGroup: a copy of a pod loses its PodGroup, because Volcano would count it as one of the gang.
func TestACopyIsInNoGroup(t *testing.T) {
	pod := injected(t, job(t, scheduledBy("volcano")))
	if pod.Annotations["scheduling.k8s.io/group-name"] != "llama" {
		t.Fatalf("%v", pod.Annotations)
	}
	pod.OwnerReferences, pod.Labels = nil, nil
	out := MutatePod(t.Context(), pod, config)
	if group := out.Object.Annotations["scheduling.k8s.io/group-name"]; group != "" || !strings.Contains(said(out), "taken off: scheduling.k8s.io/group-name") {
		t.Errorf("in group %q: %s", group, said(out))
	}
}
