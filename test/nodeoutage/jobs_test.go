package nodeoutage

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/test/devcluster"
)

// optedIn are the annotations that admission writes to the template of a protected Job.
func optedIn(more map[string]string) map[string]string {
	out := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "1"}
	maps.Copy(out, more)
	return out
}

// jobsOfGangsAlone: with the rights of the manifests the controller can make an opted-in Job fail. It can change nothing else of that Job,
// and nothing of other Jobs.
func jobsOfGangsAlone(w *world, c *devcluster.Cluster) {
	try := w.asController(c)
	w.jobNamed("given-up", nil, optedIn(nil))
	w.jobNamed("plain", nil, nil)
	elasticJob := func(least string) map[string]string {
		return optedIn(map[string]string{v1alpha1.AnnotationGangSize: "2", v1alpha1.AnnotationGangMin: least})
	}
	w.jobNamed("fewer", nil, elasticJob("1"))
	w.jobNamed("all-needed", nil, elasticJob("2"))
	w.jobNamed("watched", nil, optedIn(map[string]string{v1alpha1.AnnotationMode: v1alpha1.ModeObserve}))
	patch := func(job, patch string, subresource ...string) error {
		_, err := try.kube.BatchV1().
			Jobs("default").
			Patch(w.ctx, job, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry}, subresource...)
		return err
	}
	try.inForce("holdfast-controller-jobs", func() error { return patch("plain", `{"metadata":{"labels":{"x":"y"}}}`) })
	lower, target := `{"spec":{"backoffLimit":0}}`, `{"status":{"conditions":[`+condition("FailureTarget", "SameFailureTwice")+`]}}`
	met := func(reason string, more ...string) string {
		return `{"status":{"conditions":[` + strings.Join(append(more, condition("SuccessCriteriaMet", reason)), ",") + `]}}`
	}
	completes := met(v1alpha1.ReasonRunsWithFewer)
	for _, c := range []struct{ what, job, patch, sub, refused string }{
		{"completion of a Job with a minimum", "fewer", completes, "status", ""},
		{"its failure", "fewer", target, "status", ""},
		{"its completion for another reason", "fewer", met(batchv1.JobReasonSuccessPolicy), "status", "only with reason RunsWithFewer"},
		{"its completion without a reason", "fewer", met(""), "status", "only with reason RunsWithFewer"},
		{"its completion and failure", "fewer", met(v1alpha1.ReasonRunsWithFewer, condition("FailureTarget", "SameFailureTwice")), "status", "cannot set SuccessCriteriaMet=True and FailureTarget=true"},
		{"completion of a Job whose minimum is all pods", "all-needed", completes, "status", "no condition of a Job but"},
		{"completion of a Job without a minimum", "given-up", completes, "status", "no condition of a Job but"},
		{"completion of an unrelated Job", "plain", completes, "status", "opted in at their creation"},
		{"limit", "given-up", lower, "", ""},
		{"target", "given-up", target, "status", ""},
		{"limit of an unrelated Job", "plain", lower, "", "opted in at their creation"},
		{"target of an unrelated Job", "plain", target, "status", "opted in at their creation"},
		{"limit of a Job that is watched", "watched", lower, "", "opted in at their creation"},
		{"target of a Job that is watched", "watched", target, "status", "opted in at their creation"},
		{"a higher limit", "given-up", `{"spec":{"backoffLimit":100}}`, "", "only lower"},
		{"rest", "given-up", `{"spec":{"suspend":true}}`, "", "beside its backoffLimit"},
		{"size", "given-up", `{"spec":{"parallelism":0}}`, "", "beside its backoffLimit"},
		{"deadline", "given-up", `{"spec":{"activeDeadlineSeconds":1}}`, "", "beside its backoffLimit"},
		{"clean-up", "given-up", `{"spec":{"ttlSecondsAfterFinished":0}}`, "", "beside its backoffLimit"},
		{"label", "given-up", `{"metadata":{"labels":{"a":"b"}}}`, "", "metadata of a Job"},
		{"annotation", "given-up", `{"metadata":{"annotations":{"a":"b"}}}`, "", "metadata of a Job"},
		{"room for a pod", "given-up", `{"metadata":{"annotations":{"holdfast.dev/made-room":"2026-01-02T12:00:00Z"}}}`, "", ""},
		{"room for a pod of an unrelated Job", "plain", `{"metadata":{"annotations":{"holdfast.dev/made-room":"x"}}}`, "", "opted in at their creation"},
		{"opt-in of another's", "plain", `{"metadata":{"annotations":{"holdfast.dev/enabled":"true"}}}`, "", "opted in at their creation"},
		{"owner", "given-up", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`, "", "metadata of a Job"},
		{"another condition", "given-up", `{"status":{"conditions":[{"type":"Suspended","status":"True","reason":"r","message":"m"}]}}`, "status", "FailureTarget"},
		{"no target", "given-up", `{"status":{"conditions":[{"type":"FailureTarget","status":"False","reason":"r","message":"m"}]}}`, "status", "only to true"},
		{"count", "given-up", `{"status":{"ready":1}}`, "status", "what a Job counts"},
	} {
		var sub []string
		if c.sub != "" {
			sub = []string{c.sub}
		}
		try.expect(c.what, patch(c.job, c.patch, sub...), c.refused)
	}
	w.gives(c, try.config, corev1.RestartPolicyNever, "given-up", func(j *batchv1.Job) bool { return *j.Spec.BackoffLimit == 0 })
	w.jobNamed("given-up-at-once", func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }, optedIn(nil))
	w.gives(c, try.config, corev1.RestartPolicyOnFailure, "given-up-at-once", func(j *batchv1.Job) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
}

// condition is a Job's condition that is true.
func condition(kind, reason string) string {
	return fmt.Sprintf(`{"type":%q,"status":"True","reason":%q,"message":"m"}`, kind, reason)
}

// gangs installs the definition of Gangs.
func (w *world) gangs(c *devcluster.Cluster) {
	w.t.Helper()
	for _, args := range [][]string{{"apply", "-f", "../../manifests/crd/holdfast.dev_gangs.yaml"}, {"wait", "--for=condition=Established", "--timeout=60s", "crd/gangs.holdfast.dev"}} {
		if _, err := c.Kubectl(w.ctx, args...); err != nil {
			w.t.Fatal(err)
		}
	}
}

// gives makes the Job fail by the code of the controller, with the controller's rights.
func (w *world) gives(c *devcluster.Cluster, config *rest.Config, policy corev1.RestartPolicy, name string, done func(*batchv1.Job) bool) {
	w.t.Helper()
	w.gangs(c)
	own, err := client.New(config, client.Options{Scheme: ours(w)})
	if err != nil {
		w.t.Fatal(err)
	}
	job, err := w.direct.BatchV1().Jobs("default").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	gang := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.GangSpec{Members: 1, JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: string(job.UID)}}}
	eventually.Succeeds(w.t, "the Gang of Job "+name, func() error { return client.IgnoreAlreadyExists(own.Create(w.ctx, gang)) })
	store := storeOver(w.t, own, config)
	if err := store.End(w.ctx, coordinator.Key{
		Namespace: "default",
		Name:      name,
		Job:       string(job.UID),
	}, elastic.Verdict{Reason: elastic.ReasonNoProgress, ExitCode: 1}); err != nil {
		w.t.Fatalf("with its own rights the controller cannot make a Job with restartPolicy %s fail: %v", policy, err)
	}
	eventually.Succeeds(w.t, "the end of Job "+name, func() error {
		j, err := w.direct.BatchV1().Jobs("default").Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && !done(j) {
			err = errors.New("it goes on")
		}
		return err
	})
}

// storeOver is the elastic controller over a client, without caches.
func storeOver(t *testing.T, api client.Client, config *rest.Config) *elasticcontroller.Controller {
	t.Helper()
	return elasticcontroller.New(elasticcontroller.Options{
		Client:   api,
		Live:     api,
		Jobs:     jobsOver(t, api, config),
		Recorder: events.NewFakeRecorder(20),
		Log:      logr.Discard(),
	})
}

// jobsOver reads jobs over a client, and watches none.
func jobsOver(t *testing.T, api client.Client, config *rest.Config) *jobs.Reader {
	t.Helper()
	ofMetadata, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return jobs.New(jobs.Options{Client: api, Live: api, Metadata: ofMetadata, Kinds: kinds.Served(), Log: logr.Discard()})
}
