package webhook

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestExportedJobs: a user exports an admitted Job and creates it with another name, size or image. What admission wrote is adapted, or is
// removed together with the annotation that opts the Job in.
func TestExportedJobs(t *testing.T) {
	read := readAs([]string{"torchrun"}, []string{"train.py"})
	exported := admitted(t, job(t))
	bareOne := createJob(t.Context(), job(t, bare()), read).Object
	for name, c := range map[string]struct {
		of     *batchv1.Job
		change func(*batchv1.Job)
		facts  Facts
		like   *batchv1.Job
	}{
		"the same again":                     {exported, func(*batchv1.Job) {}, Facts{}, exported},
		"of one of which a pod was replaced": {exported, annotate(v1alpha1.AnnotationMadeRoom, "2026-01-02T12:00:00Z"), Facts{}, exported},
		"of another name":                    {exported, func(j *batchv1.Job) { j.Name = "second" }, Facts{}, admitted(t, job(t, func(j *batchv1.Job) { j.Name = "second" }))},
		"of another size":                    {exported, ofPods(4), Facts{}, admitted(t, job(t, ofPods(4)))},
		"of a name to come":                  {exported, func(j *batchv1.Job) { j.Name, j.GenerateName = "", "x-" }, Facts{}, admitted(t, job(t, func(j *batchv1.Job) { j.Name, j.GenerateName = "", "x-" }))},
		"of an image that changed": {bareOne, func(*batchv1.Job) {}, readAs([]string{"python", "-m", "torch.distributed.run"}, []string{"x.py"}),
			createJob(t.Context(), job(t, bare()), readAs([]string{"python", "-m", "torch.distributed.run"}, []string{"x.py"})).Object},
		"with a command now": {bareOne, trainer(func(c *corev1.Container) { c.Command = []string{"torchrun", "y.py"} }), Facts{},
			admitted(t, job(t, bare(), trainer(func(c *corev1.Container) { c.Command = []string{"torchrun", "y.py"} })))},
	} {
		in := c.of.DeepCopy()
		c.change(in)
		out := createJob(t.Context(), in, c.facts)
		if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, c.like) {
			t.Errorf("%s: %s\n%s", name, said(out), asYAML(t, out.Object))
		}
	}
	off := exported.DeepCopy()
	annotate(v1alpha1.AnnotationEnabled, "false")(off)
	annotateTemplate(v1alpha1.AnnotationEnabled, "false")(off)
	out := createJob(t.Context(), off, Facts{})
	if _, sized := out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangSize]; len(out.Errors) > 0 || sized ||
		out.Object.Spec.Template.Labels[v1alpha1.LabelGang] != "" {
		t.Errorf("opted out: %s\n%s", said(out), asYAML(t, out.Object.Spec.Template.ObjectMeta))
	}
}

// TestCopiesOfPods: a copy of a pod without its Job runs as a plain pod, whichever of Holdfast's keys were copied.
func TestCopiesOfPods(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"a backup":                    func(*corev1.Pod) {},
		"kubectl debug --keep-labels": func(p *corev1.Pod) { p.Annotations = nil },
		"kubectl debug --keep-annotations, another command": func(p *corev1.Pod) {
			p.Labels, p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = nil, []string{"sh"}, nil
		},
		"of a replaced pod": func(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" },
		"of another owner": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "u"}}
		},
	} {
		pod := injected(t, job(t, variable("HOLDFAST_OVERLAP", "1")))
		pod.OwnerReferences = nil
		change(pod)
		out := MutatePod(t.Context(), pod, config)
		if len(out.Errors) > 0 || !strings.Contains(said(out), "runs its command as a plain pod, outside of any gang; taken off: ") {
			t.Errorf("%s: %s", name, said(out))
		}
		for _, keys := range []map[string]string{out.Object.Labels, out.Object.Annotations} {
			for key := range keys {
				if strings.HasPrefix(key, v1alpha1.Prefix) {
					t.Errorf("%s: %s stayed", name, key)
				}
			}
		}
		if envOf(out.Object, "HOLDFAST_COORDINATOR") != "" || envOf(out.Object, "HOLDFAST_OVERLAP") != "1" || envOf(out.Object, "LR") == "" {
			t.Errorf("%s: variables %+v", name, out.Object.Spec.Containers[0].Env)
		}
		if again := MutatePod(t.Context(), out.Object, config); len(again.Errors) > 0 || envOf(again.Object, "HOLDFAST_COORDINATOR") != "" {
			t.Errorf("%s, again: %s", name, said(again))
		}
	}
}
