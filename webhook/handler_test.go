package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func raw(t *testing.T, obj any) runtime.RawExtension {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: text}
}

func request(operation admissionv1.Operation, obj, old runtime.RawExtension) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "1", Operation: operation, Kind: metav1.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, Name: "llama", Object: obj, OldObject: old}}
}

// applied returns the object after the patch of a response.
func applied(t *testing.T, before []byte, r admission.Response) []byte {
	t.Helper()
	if !r.Allowed {
		t.Fatalf("refused: %v", r.Result)
	}
	text, err := json.Marshal(r.Patches)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func pods() admission.Handler {
	return Pods(func(context.Context, string) (Config, error) { return config, nil })
}

func TestPatchIsTheMutation(t *testing.T) {
	pod := podOf(admitted(t, job(t)))
	in := raw(t, pod)
	got := &corev1.Pod{}
	if err := json.Unmarshal(
		applied(t, in.Raw, pods().Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{}))),
		got,
	); err != nil {
		t.Fatal(err)
	}
	if want := MutatePod(t.Context(), pod, config).Object; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got\n%s", asYAML(t, got))
	}
}

// TestFieldsOfNewerServersStay: fields that this version does not know stay unchanged and in their place.
func TestFieldsOfNewerServersStay(t *testing.T) {
	in := raw(t, podOf(admitted(t, job(t, podSpec(func(s *corev1.PodSpec) {
		s.InitContainers = []corev1.Container{{Name: "first"}, {Name: "second"}}
	})))))
	var tree map[string]any
	if err := json.Unmarshal(in.Raw, &tree); err != nil {
		t.Fatal(err)
	}
	spec := tree["spec"].(map[string]any)
	spec["newField"] = "x"
	for _, list := range []string{"containers", "initContainers", "volumes"} {
		for _, item := range spec[list].([]any) {
			item.(map[string]any)["newField"] = item.(map[string]any)["name"]
		}
	}
	in = raw(t, tree)
	after := applied(t, in.Raw, pods().Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{})))
	if err := json.Unmarshal(after, &tree); err != nil {
		t.Fatal(err)
	}
	spec = tree["spec"].(map[string]any)
	if spec["newField"] != "x" {
		t.Error("a field of the spec is gone")
	}
	for list, ours := range map[string]int{"containers": 0, "initContainers": 1, "volumes": 3} {
		items := spec[list].([]any)
		for _, item := range items[:len(items)-ours] {
			if m := item.(map[string]any); m["newField"] != m["name"] {
				t.Errorf("%s: %v has %v", list, m["name"], m["newField"])
			}
		}
	}
}

func TestRefusalNamesTheField(t *testing.T) {
	in := raw(t, job(t, annotate("holdfast.dev/x", "y")))
	r := Jobs(Cluster{}).Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{}))
	if r.Allowed || r.Result.Reason != metav1.StatusReasonInvalid || len(r.Result.Details.Causes) != 1 {
		t.Fatalf("answer %+v", r)
	}
	if field := r.Result.Details.Causes[0].Field; field != "metadata.annotations[holdfast.dev/x]" {
		t.Errorf("field %s", field)
	}
}

// TestRefusalIsReadable: for a value of a quarter of a megabyte the error still shows what is wrong.
func TestRefusalIsReadable(t *testing.T) {
	in := raw(t, job(t, annotate("holdfast.dev/state-size", strings.Repeat("9", 250_000))))
	r := Jobs(Cluster{}).Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{}))
	if r.Allowed || len(r.Result.Message) > 2*mostQuoted || !strings.Contains(r.Result.Message, "metadata.annotations[holdfast.dev/state-size]: Invalid value: ") {
		t.Errorf("answer of %d bytes: %.300s", len(r.Result.Message), r.Result.Message)
	}
}

func TestUpdateWarns(t *testing.T) {
	old := raw(t, job(t, func(j *batchv1.Job) { j.Annotations = nil }))
	r := Jobs(Cluster{}).Handle(context.Background(), request(admissionv1.Update, raw(t, job(t)), old))
	if !r.Allowed || len(r.Patches) != 0 || len(r.Warnings) != 1 {
		t.Errorf("answer %+v", r)
	}
}

func TestWithoutAnAuthorityPodsAreToldToComeBack(t *testing.T) {
	h := Pods(func(context.Context, string) (Config, error) { return Config{}, errors.New("none yet") })
	in := raw(t, podOf(admitted(t, job(t))))
	if r := h.Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{})); r.Allowed || r.Result.Code != 503 {
		t.Errorf("answer %+v", r)
	}
}

func TestRubbishIsRefused(t *testing.T) {
	in := runtime.RawExtension{Raw: []byte(`{"spec":`)}
	for name, h := range map[string]admission.Handler{"jobs": Jobs(Cluster{}), "pods": pods()} {
		if r := h.Handle(context.Background(), request(admissionv1.Create, in, runtime.RawExtension{})); r.Allowed || r.Result.Code != 400 {
			t.Errorf("%s: answer %+v", name, r)
		}
	}
}

// TestAnotherKindHasTheGang: a second object of the same name is refused, because the pods of both would have the label of one gang.
func TestAnotherKindHasTheGang(t *testing.T) {
	plain := func(j *batchv1.Job) { j.Annotations = map[string]string{"a": "b"} }
	for name, c := range map[string]struct {
		holder v1alpha1.JobReference
		change []func(*batchv1.Job)
		taken  bool
	}{
		"a Volcano Job":   {holder: v1alpha1.JobReference{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Name: "llama"}, taken: true},
		"an earlier Job":  {holder: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: "llama"}},
		"of another name": {holder: v1alpha1.JobReference{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "bert"}},
		"a Job that is not opted in": {
			holder: v1alpha1.JobReference{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "llama"},
			change: []func(*batchv1.Job){plain},
		},
	} {
		cluster := Cluster{Gangs: func(context.Context, string) ([]v1alpha1.Gang, error) {
			return []v1alpha1.Gang{{ObjectMeta: metav1.ObjectMeta{Name: c.holder.Name}, Spec: v1alpha1.GangSpec{JobRef: c.holder}}}, nil
		}}
		r := Jobs(cluster).Handle(t.Context(), request(admissionv1.Create, raw(t, job(t, c.change...)), runtime.RawExtension{}))
		if r.Allowed == c.taken || c.taken && !strings.Contains(r.Result.Message,
			`metadata.name: Invalid value: "llama": Job llama (batch.volcano.sh/v1alpha1) has the Gang of this name: choose another name`) {
			t.Errorf("%s: allowed %v: %v", name, r.Allowed, r.Result)
		}
	}
}

// looks is a context that ends after it was queried a number of times.
type looks struct {
	context.Context
	left int
}

func (l *looks) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestNobodyWaitsForTheAnswer: once the request's context has ended, no more of the command is parsed, and a part of it yields no answer.
func TestNobodyWaitsForTheAnswer(t *testing.T) {
	c := &corev1.Container{Command: []string{"torchrun"}}
	for i := range 1000 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "$(A)"})
	}
	c.Args = slices.Repeat([]string{"$(V0)"}, 1000)
	for _, after := range []int{0, 10, 1500} {
		ctx := &looks{t.Context(), after}
		line := readCommand(ctx, c, field.NewPath("containers").Index(0))
		if ctx.left != -1 || len(line.env) > after+1 || len(line.argv) > 0 || len(line.errs) != 1 || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("after %d looks: %d are left, %d variables and %d arguments are read: %v", after, ctx.left, len(line.env), len(line.argv), line.errs)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	created := raw(t, job(t))
	for what, r := range map[string]admission.Response{
		"a Job":           Jobs(Cluster{}).Handle(gone, request(admissionv1.Create, created, runtime.RawExtension{})),
		"a change of one": Jobs(Cluster{}).Handle(gone, request(admissionv1.Update, created, created)),
		"a pod":           pods().Handle(gone, request(admissionv1.Create, raw(t, podOf(admitted(t, job(t)))), runtime.RawExtension{})),
		"an admitted pod": pods().Handle(gone, request(admissionv1.Create, raw(t, injected(t, job(t))), runtime.RawExtension{})),
	} {
		if r.Allowed || r.Result.Code != http.StatusServiceUnavailable || !strings.Contains(r.Result.Message, "was cancelled before it finished") {
			t.Errorf("%s: %+v", what, r.AdmissionResponse)
		}
	}
}
