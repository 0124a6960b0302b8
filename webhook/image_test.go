package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

// readAs returns facts with this content of the image.
func readAs(entrypoint, cmd []string) Facts {
	p := &ImageProcess{Image: "example.com/trainer@sha256:" + strings.Repeat("0", 64), Entrypoint: entrypoint, Cmd: cmd}
	return Facts{Images: map[string]Image{v1alpha1.RoleWorker: {Process: p}}}
}

// bare makes the training container have no command.
func bare(args ...string) func(*batchv1.Job) {
	return trainer(func(c *corev1.Container) { c.Command, c.Args = nil, args })
}

// TestImageCommand: pods start what the kubelet's runtime would have started.
func TestImageCommand(t *testing.T) {
	type list = []string
	for name, c := range map[string]struct {
		entrypoint, cmd, args list
		command, arguments    list
	}{
		"ENTRYPOINT and CMD":      {list{"torchrun"}, list{"train.py"}, nil, list{"torchrun"}, list{"train.py"}},
		"ENTRYPOINT and args":     {list{"torchrun"}, list{"other.py"}, list{"train.py"}, list{"torchrun"}, list{"train.py"}},
		"CMD alone":               {nil, list{"torchrun", "train.py"}, nil, list{"torchrun", "train.py"}, nil},
		"args alone":              {nil, list{"bash"}, list{"torchrun", "train.py"}, list{"torchrun", "train.py"}, nil},
		"ENTRYPOINT alone":        {list{"/run.sh"}, nil, nil, list{"/run.sh"}, nil},
		"what looks like ours":    {list{"sh", "-c", "echo $(date) $$ $HOME"}, list{"$x", "$(LR)"}, nil, list{"sh", "-c", "echo $$(date) $$$$ $$HOME"}, list{"$x", "$$(LR)"}},
		"args that are the pod's": {list{"sh"}, nil, list{"$(LR)"}, list{"sh"}, list{"$(LR)"}},
	} {
		facts := readAs(c.entrypoint, c.cmd)
		in := job(t, bare(c.args...))
		out := createJob(t.Context(), in, facts)
		if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(in.Spec.Template.Spec, out.Object.Spec.Template.Spec) {
			t.Errorf("%s: the Job's own fields were changed: %s", name, said(out))
			continue
		}
		if twice := createJob(t.Context(), out.Object, facts); len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, twice.Object) {
			t.Errorf("%s: the second call changes the Job: %s", name, said(twice))
		}
		pod := MutatePod(t.Context(), podOf(out.Object), config)
		if len(pod.Errors) > 0 {
			t.Errorf("%s: %s", name, said(pod))
			continue
		}
		got := pod.Object.Spec.Containers[0]
		if !reflect.DeepEqual(got.Command, append(append(list{}, wrapper...), c.command...)) ||
			strings.Join(got.Args, "|") != strings.Join(c.arguments, "|") {
			t.Errorf("%s: %q %q", name, got.Command, got.Args)
		}
		if again := MutatePod(t.Context(), pod.Object, config); len(again.Errors) > 0 || !equality.Semantic.DeepEqual(pod.Object, again.Object) {
			t.Errorf("%s: injecting twice differs: %s", name, said(again))
		}
	}
}

func TestImageRefusals(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name  string
		facts Facts
		job   *batchv1.Job
	}{
		{"not read", Facts{Images: map[string]Image{v1alpha1.RoleWorker: {Err: errors.New("registry example.com has no such image")}}}, job(t, bare("train.py"))},
		{"starts nothing", readAs(nil, nil), job(t, bare())},
		{"a flag of the image's", readAs([]string{"torchrun", "--frobnicate"}, nil), job(t, bare("train.py"))},
	} {
		out := createJob(t.Context(), c.job, c.facts)
		if len(out.Errors) == 0 {
			t.Errorf("%s: not refused", c.name)
		}
		b.WriteString("# " + c.name + "\n" + said(out))
	}
	golden.File(t, "testdata/image.txt", b.String())
}

// TestImageIsAskedFor: an image is read once per Job, with the credentials of the Job's pods, and not for a Job that names its command.
func TestImageIsAskedFor(t *testing.T) {
	var asked []ImageQuery
	images := func(_ context.Context, q ImageQuery) (ImageProcess, error) {
		asked = append(asked, q)
		return *readAs([]string{"torchrun"}, []string{"train.py"}).Images[v1alpha1.RoleWorker].Process, nil
	}
	handle := func(j *batchv1.Job, old runtime.RawExtension) *batchv1.Job {
		t.Helper()
		operation := admissionv1.Create
		if len(old.Raw) > 0 {
			operation = admissionv1.Update
		}
		in := raw(t, j)
		req := request(operation, in, old)
		req.Namespace = "team"
		after := &batchv1.Job{}
		if err := json.Unmarshal(applied(t, in.Raw, Jobs(Cluster{Images: images}).Handle(context.Background(), req)), after); err != nil {
			t.Fatal(err)
		}
		return after
	}
	handle(job(t), runtime.RawExtension{})
	handle(job(t, bare(), annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve)), runtime.RawExtension{})
	handle(job(t, bare(), annotate(v1alpha1.AnnotationEnabled, "false")), runtime.RawExtension{})
	handle(job(t, bare(), annotate(v1alpha1.AnnotationEnabled, "false"), annotate(v1alpha1.AnnotationContainer, "absent")), runtime.RawExtension{})
	if len(asked) > 0 {
		t.Fatalf("asked %+v", asked)
	}
	first := job(t, bare(), func(j *batchv1.Job) { j.Namespace = "" }, podSpec(func(s *corev1.PodSpec) {
		s.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64"}
		s.ServiceAccountName, s.ImagePullSecrets = "trainer", []corev1.LocalObjectReference{{Name: "a"}}
	}))
	once := handle(first, runtime.RawExtension{})
	handle(once, runtime.RawExtension{})
	want := ImageQuery{Image: "example.com/trainer:1", Namespace: "team", Architecture: "arm64", ServiceAccount: "trainer", PullSecrets: []string{"a"}}
	if !reflect.DeepEqual(asked, []ImageQuery{want, want}) {
		t.Errorf("asked %+v", asked)
	}
	// A suspended Job is opted in by a change, which may only touch the annotations of its template.
	asked = nil
	waits := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
	after := handle(job(t, bare(), waits), raw(t, job(t, bare(), waits, func(j *batchv1.Job) { j.Annotations = nil })))
	if len(asked) != 1 || after.Spec.Template.Annotations[v1alpha1.AnnotationImageCommand] == "" ||
		len(after.Spec.Template.Spec.Containers[0].Command) > 0 {
		t.Errorf("asked %+v, template %v", asked, after.Spec.Template.Annotations)
	}
	// Later changes of the Job use the stamp on its template, also a change that only has the keys of the user's file.
	stamp := after.Spec.Template.Annotations[v1alpha1.AnnotationImageCommand]
	other := func(j *batchv1.Job) {
		j.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64"}
	}
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		reads  int
	}{
		"nothing of the image's": {annotate(v1alpha1.AnnotationStandbys, "off"), 0},
		"its image":              {trainer(func(c *corev1.Container) { c.Image = "example.com/trainer:2" }), 1},
		"its architecture":       {other, 1},
	} {
		asked = nil
		got := handle(job(t, bare(), waits, c.change), raw(t, after))
		if len(asked) != c.reads || got.Spec.Template.Annotations[v1alpha1.AnnotationImageCommand] != stamp {
			t.Errorf("%s changes: asked %+v, template %v", name, asked, got.Spec.Template.Annotations)
		}
	}
}
