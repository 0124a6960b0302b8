package webhook

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// ofAllKinds has what the controllers of all kinds write on a pod, for the first pod of another job.
var ofAllKinds = map[string]string{
	"volcano.sh/task-spec":                  "worker",
	"volcano.sh/task-index":                 "1",
	"training.kubeflow.org/job-name":        "other",
	"training.kubeflow.org/replica-type":    "worker",
	"training.kubeflow.org/replica-index":   "1",
	"jobset.sigs.k8s.io/jobset-name":        "other",
	"jobset.sigs.k8s.io/replicatedjob-name": "workers",
	"jobset.sigs.k8s.io/job-index":          "1",
}

const jobSetUID = "jobset.sigs.k8s.io/jobset-uid"

func partOf(uid string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "set", UID: types.UID(uid), Controller: ptr.To(true)}}
	}
}

// TestJobsOfJobSets: a batch Job of a JobSet is not changed, and the pods of no other Job get a slot in the JobSet.
func TestJobsOfJobSets(t *testing.T) {
	labelled := func(uid string) func(*batchv1.Job) {
		return podSpecMeta(func(m *metav1.ObjectMeta) { m.Labels = setKey(m.Labels, jobSetUID, uid) })
	}
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		says   string
	}{
		"its part":               {[]func(*batchv1.Job){partOf("a"), labelled("a")}, ""},
		"another's label":        {[]func(*batchv1.Job){partOf("a"), labelled("b")}, `spec.template.metadata.labels[jobset.sigs.k8s.io/jobset-uid]: Invalid value: "b": must be the UID of JobSet set, which controls this Job`},
		"no label":               {[]func(*batchv1.Job){partOf("a")}, "must be the UID of JobSet set"},
		"no UID":                 {[]func(*batchv1.Job){partOf(""), labelled("")}, "must be the UID of JobSet set"},
		"a label, and no JobSet": {[]func(*batchv1.Job){labelled("a")}, "gives the pods a place in a JobSet, and this Job is a part of none: remove it"},
	} {
		in := job(t, c.change...)
		waits := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
		for what, out := range map[string]Outcome[*batchv1.Job]{
			"created": createJob(t.Context(), in, Facts{}),
			"changed": changeJob(t.Context(), job(t, waits), job(t, append(c.change, waits)...), Facts{}),
		} {
			if (c.says != "") != (len(out.Errors) == 1) || !strings.Contains(said(out), c.says) {
				t.Errorf("%s, %s: %s", name, what, said(out))
			}
			if c.says == "" && out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangSize] != "" {
				t.Errorf("%s, %s: stamped", name, what)
			}
		}
	}
}

// TestChangesOfAJobSetsJob: the number and the slots of a Job's member pods, and its stamps, cannot be changed. JobSet's controller may
// make the writes with which it resumes the Job. A Job of a JobSet that was not opted in gets no key of Holdfast.
func TestChangesOfAJobSetsJob(t *testing.T) {
	child := func(change ...func(*batchv1.Job)) *batchv1.Job {
		return job(t, append([]func(*batchv1.Job){partOf("a"), func(j *batchv1.Job) {
			j.Annotations, j.Spec.Suspend = nil, ptr.To(true)
			j.Spec.Template.Labels = map[string]string{v1alpha1.LabelGang: "set", jobSetUID: "a", "jobset.sigs.k8s.io/jobset-name": "set",
				"jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0"}
			j.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "8",
				v1alpha1.AnnotationGangSlots: "0/4/8"}
		}}, change...)...)
	}
	label := func(key, value string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Spec.Template.Labels[key] = value }
	}
	key := func(key, value string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Spec.Template.Annotations[key] = value }
	}
	plain := func(j *batchv1.Job) { j.Spec.Template.Annotations = map[string]string{} }
	const wrote = `: says which pods of the JobSet these are, and its controller writes it: leave it `
	for name, c := range map[string]struct {
		old, change func(*batchv1.Job)
		says        string
	}{
		"resumed": {nil, func(j *batchv1.Job) {
			j.Spec.Suspend = ptr.To(false)
			j.Spec.Template.Spec.NodeSelector = map[string]string{"flavor": "a"}
			j.Spec.Template.Labels["kueue.x-k8s.io/podset"] = "workers"
		}, ""},
		"more pods": {nil, func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](5), ptr.To[int32](5) },
			"spec.parallelism: Invalid value: 5: the gang of the JobSet was formed with 2 pods of this Job and cannot change its size yet: delete the JobSet and create it again"},
		"another set's":      {nil, label(jobSetUID, "b"), "must be the UID of JobSet set"},
		"of another name":    {nil, label("jobset.sigs.k8s.io/jobset-name", "b"), `labels[jobset.sigs.k8s.io/jobset-name]: Invalid value: "b"` + wrote + `"set"`},
		"of another role":    {nil, label("jobset.sigs.k8s.io/replicatedjob-name", "b"), wrote + `"workers"`},
		"another Job's":      {nil, label("jobset.sigs.k8s.io/job-index", "1"), wrote + `"0"`},
		"another gang":       {nil, label(v1alpha1.LabelGang, "b"), "is written only by holdfast: remove it"},
		"other slots":        {nil, key(v1alpha1.AnnotationGangSlots, "4/4/8"), "is written only by holdfast: remove it"},
		"a setting":          {nil, key(v1alpha1.AnnotationStateSize, "1Gi"), "has no effect on a Job of a JobSet: annotate the JobSet"},
		"its stamps removed": {nil, plain, ""},
		"opted in by hand":   {plain, key(v1alpha1.AnnotationGangSize, "8"), "is written only by holdfast: remove it"},
		"more, not ours":     {plain, func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](5) }, ""},
	} {
		old := child()
		if c.old != nil {
			old = child(c.old)
		}
		in := old.DeepCopy()
		c.change(in)
		out := changeJob(t.Context(), old, in, Facts{})
		if (c.says != "") != (len(out.Errors) == 1) || !strings.Contains(said(out), c.says) {
			t.Errorf("%s: %s", name, said(out))
		}
		if got := out.Object.Spec.Template.Annotations; c.says == "" && !maps.Equal(got, old.Spec.Template.Annotations) {
			t.Errorf("%s: annotations %v", name, got)
		}
	}
}

// TestForgedPlaces: labels of another kind do not make a pod a member, nor give a member another slot.
func TestForgedPlaces(t *testing.T) {
	pod := podOf(admitted(t, job(t)))
	pod.Labels, pod.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	maps.Copy(pod.Labels, ofAllKinds)
	maps.Copy(pod.Annotations, ofAllKinds)
	out := MutatePod(t.Context(), pod, config)
	if slot, ok := membership.GangSlot(out.Object); len(out.Errors) > 0 || !ok || slot != 0 ||
		out.Object.Labels[v1alpha1.LabelGang] != "llama" || membership.GangRole(out.Object) != v1alpha1.RoleWorker {
		t.Errorf("a batch Job's pod: %s %v", said(out), out.Object.Annotations)
	}
	for _, ref := range []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "u", Controller: ptr.To(true)},
		{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "x", UID: "u", Controller: ptr.To(true)},
		{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "x", UID: "u"}, // not in control
	} {
		p := pod.DeepCopy()
		p.Labels[jobSetUID] = "u"
		p.OwnerReferences = []metav1.OwnerReference{ref}
		if out := MutatePod(t.Context(), p, config); len(out.Errors) == 0 {
			t.Errorf("a pod of %s %s: %v", ref.Kind, ref.Name, out.Object.Annotations)
		}
	}
}

// TestPlacesOutsideOfARole: no pod gets a slot that its role does not have, or another gang than that of its job.
func TestPlacesOutsideOfARole(t *testing.T) {
	for name, c := range map[string]struct {
		of     string
		pod    int
		change func(*corev1.Pod)
		says   string
	}{
		"a worker too many":      {"pytorchjob-simple", 1, func(p *corev1.Pod) { p.Labels["training.kubeflow.org/replica-index"] = "1" }, `Invalid value: "1/1/1": has no slot for pod 0.1 of role "worker": the number of pods of PyTorchJob pytorch-simple is that of its creation`},
		"a worker of no number":  {"pytorchjob-simple", 1, func(p *corev1.Pod) { delete(p.Labels, "training.kubeflow.org/replica-index") }, `has no slot for pod 0.-1 of role "worker"`},
		"a task too many":        {"volcano-pytorch", 0, func(p *corev1.Pod) { p.Annotations["volcano.sh/task-index"] = "3" }, "of Volcano Job llama is that of its creation"},
		"a Job too many":         {"jobset-roles", 3, func(p *corev1.Pod) { p.Labels["jobset.sigs.k8s.io/job-index"] = "2" }, "has no slot for pod 2.1"},
		"an index too many":      {"jobset-roles", 3, func(p *corev1.Pod) { p.Annotations[batchv1.JobCompletionIndexAnnotation] = "2" }, "has no slot for pod 0.2"},
		"another set's":          {"jobset-roles", 3, func(p *corev1.Pod) { p.Labels["jobset.sigs.k8s.io/jobset-name"] = "other" }, "metadata.labels[holdfast.dev/gang]"},
		"slots beyond the gang":  {"pytorchjob-simple", 1, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSlots] = "2/1/1" }, "has no slot for pod 0.0"},
		"slots that are none":    {"pytorchjob-simple", 1, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSlots] = "1/0/-1" }, "must be as admission of PyTorchJob pytorch-simple wrote it on the pod template"},
		"no slots":               {"pytorchjob-simple", 1, func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationGangSlots) }, "must be as admission of PyTorchJob"},
		"no size":                {"pytorchjob-simple", 1, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSize] = "0" }, "admission of the PyTorchJob writes it: remove the annotation and set the number of pods there"},
		"a batch Job with slots": {"", 0, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSlots] = "0/2/2" }, "metadata.annotations[holdfast.dev/gang-slots]: Invalid value: \"0/2/2\": is written only by holdfast: remove it"},
	} {
		pods := []*corev1.Pod{podOf(admitted(t, job(t)))}
		if c.of != "" {
			kind, obj := example(t, c.of)
			pods = podsOf(kind, mutateJob(t.Context(), kind, obj, Facts{}).Object)
		}
		c.change(pods[c.pod])
		if out := MutatePod(t.Context(), pods[c.pod], config); len(out.Errors) != 1 || !strings.Contains(said(out), c.says) {
			t.Errorf("%s: %s", name, said(out))
		}
	}
	kind, obj := example(t, "pytorchjob-simple")
	late := podsOf(kind, obj)[0]
	late.Annotations = setKey(late.Annotations, v1alpha1.AnnotationEnabled, "true")
	if out := MutatePod(t.Context(), late, config); len(out.Errors) > 0 || !equality.Semantic.DeepEqual(late, out.Object) ||
		!strings.Contains(said(out), "PyTorchJob pytorch-simple was not admitted by holdfast when it was created, so its pods stay as they are; delete the PyTorchJob and create it again") {
		t.Errorf("of an object that was not admitted: %s", said(out))
	}
}

// FuzzKinds: any object is refused, or a second admission does not change it. Its pods are injected or refused.
func FuzzKinds(f *testing.F) {
	for _, name := range []string{"volcano-pytorch", "volcano-ours", "jobset-roles", "pytorchjob-simple", "pytorchjob-workers"} {
		kind, obj := example(f, name)
		for _, o := range []any{obj.Object, mutateJob(f.Context(), kind, obj, Facts{}).Object.Object} {
			text, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		obj, err := decodeObject(text)
		if err != nil {
			return
		}
		for _, kind := range kinds.Served() {
			once := mutateJob(t.Context(), kind, obj, Facts{})
			checkJobUpdate(t.Context(), kind, obj, once.Object, Facts{})
			if len(once.Errors) > 0 {
				continue
			}
			twice := mutateJob(t.Context(), kind, once.Object, Facts{})
			if len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(once.Object, twice.Object) {
				t.Fatalf("%s: the second call differs: %s", kinds.Title(kind), said(twice))
			}
			pods := podsOf(kind, once.Object)
			if len(pods) == 0 {
				continue
			}
			out := MutatePod(t.Context(), pods[0], config)
			if len(out.Errors) > 0 {
				continue
			}
			again := MutatePod(t.Context(), out.Object, config)
			if len(again.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, again.Object) {
				t.Fatalf("%s: injecting twice differs: %s", kinds.Title(kind), said(again))
			}
		}
	})
}
