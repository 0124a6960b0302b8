package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/story"
)

// testStory plays what `make demo` plays; each chapter fails at the first promise that does not hold.
func testStory(ctx context.Context, t *testing.T, w *story.World) {
	report, err := story.Play(ctx, w)
	if report != nil {
		var text strings.Builder
		if err := report.WriteSummary(&text); err != nil {
			t.Error(err)
		}
		t.Log(text.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Recoveries {
		if r.StepsRecomputed < 0 {
			t.Errorf("%s: it is not known how many steps were recomputed", r.What)
		}
		if r.StepsRecomputed > 2 && !strings.Contains(r.What, "away") {
			t.Errorf("%s: %d steps were recomputed, more than the one save interval that ranks may be apart plus the one under way", r.What, r.StepsRecomputed)
		}
	}
}

// testBugOnFailure: the job ends as fast with a restart policy by which the kubelet would restart containers for ever.
func testBugOnFailure(ctx context.Context, t *testing.T, w *story.World) {
	for _, backoffLimit := range []int32{0, 6} {
		if _, err := w.Bug(ctx, corev1.RestartPolicyOnFailure, backoffLimit); err != nil {
			t.Fatalf("backoffLimit %d: %v", backoffLimit, err)
		}
		if err := w.Gone(ctx, "bug-onfailure"); err != nil {
			t.Fatal(err)
		}
	}
}

// testRefusals: bad input is refused with field and remedy, and no object is left behind.
func testRefusals(ctx context.Context, t *testing.T, w *story.World) {
	for _, tc := range []struct {
		name  string
		spoil func(*batchv1.Job)
		want  []string
	}{
		{"unknown key", func(j *batchv1.Job) { j.Annotations["holdfast.dev/enable"] = "true" }, []string{"metadata.annotations", "holdfast.dev/enable"}},
		{"bad value", func(j *batchv1.Job) { j.Annotations[v1alpha1.AnnotationEnabled] = "yes" }, []string{v1alpha1.AnnotationEnabled, `"true"`}},
		{"bad quantity", func(j *batchv1.Job) { j.Annotations[v1alpha1.AnnotationStateSize] = "much" }, []string{v1alpha1.AnnotationStateSize}},
		{"no command", func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Command = nil }, []string{"spec.template.spec.containers[0].command"}},
		{"not indexed", func(j *batchv1.Job) { j.Spec.CompletionMode = nil }, []string{"spec.completionMode"}},
		{"launcher flag", func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Command = []string{"torchrun", "--nproc-per-node=2", "--logs-specs=mine", "x.py"}
		}, []string{"spec.template.spec.containers[0].command", "logs-specs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			job := story.BugJob(corev1.RestartPolicyNever, 0)
			tc.spoil(job)
			err := w.Client().Create(ctx, job)
			if err == nil {
				_ = w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
				t.Fatal("was admitted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the answer does not name %q: %v", want, err)
				}
			}
		})
	}
}

// testShellRefusal: a flag inside a shell command is refused when the launcher starts, with an event on the Job.
func testShellRefusal(ctx context.Context, t *testing.T, w *story.World) {
	job := story.BugJob(corev1.RestartPolicyNever, 0)
	job.Name = "refused"
	job.Spec.Template.Spec.Containers[0].Command = []string{"bash", "-c", "cd /tmp && torchrun --nproc-per-node=1 --logs-specs=mine x.py"}
	if err := w.Client().Create(ctx, job); err != nil {
		t.Fatal(err)
	}
	if err := w.Until(ctx, "an event on the Job", time.Minute, func(ctx context.Context) (bool, string) {
		return w.HasEvent(ctx, story.Namespace, "Job", job.Name, v1alpha1.ReasonRefused, "logs-specs")
	}); err != nil {
		t.Error(err)
	}
	if err := w.Until(ctx, "the pod ends with exit code 2", time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, story.Namespace, job.Name)
		if err != nil || len(pods) == 0 || len(pods[0].Status.ContainerStatuses) == 0 {
			return false, "no pod yet"
		}
		end := pods[0].Status.ContainerStatuses[0].State.Terminated
		return end != nil && end.ExitCode == 2, pods[0].Status.String()
	}); err != nil {
		t.Error(err)
	}
	if err := w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Error(err)
	}
}

// testUntouched: admission does not change a pod without Holdfast's keys.
func testUntouched(ctx context.Context, t *testing.T, w *story.World) {
	job := story.BugJob(corev1.RestartPolicyNever, 0)
	job.Name, job.Annotations = "plain", nil
	job.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "1"}
	if err := w.Client().Create(ctx, job); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)) }()
	if err := w.Until(ctx, "its pod exists", 30*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, story.Namespace, job.Name)
		if err != nil || len(pods) == 0 {
			return false, "none"
		}
		p := pods[0]
		if len(p.Spec.InitContainers) != 0 || p.Spec.SchedulerName != "default-scheduler" || p.Spec.Containers[0].Command[0] != "sleep" {
			t.Errorf("the pod was touched: %+v", p.Spec)
		}
		return true, ""
	}); err != nil {
		t.Fatal(err)
	}
	// Annotating it now has no effect, and the API server warns.
	out, err := w.RunKubectl(ctx, "annotate", "-n", story.Namespace, "job/plain", v1alpha1.AnnotationEnabled+"=true")
	if err != nil || !strings.Contains(out, "Warning:") {
		t.Errorf("annotating a running job gave no warning: %q, %v", out, err)
	}
}
