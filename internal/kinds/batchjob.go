package kinds

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// BatchJob is the Job of Kubernetes (1.37: pkg/controller/job).
type BatchJob struct{}

// GroupVersionKind implements Kind.
func (BatchJob) GroupVersionKind() schema.GroupVersionKind {
	return batchv1.SchemeGroupVersion.WithKind("Job")
}

// Resource implements Kind.
func (BatchJob) Resource() string { return "jobs" }

// Read implements Kind: a Job has one role, whose pods have completion indexes.
func (BatchJob) Read(obj *unstructured.Unstructured) (Job, field.ErrorList) {
	job, err := decode[batchv1.Job](obj)
	if err != nil {
		return Job{}, unreadable(obj, err)
	}
	spec := field.NewPath("spec")
	n, errs := indexed(&job.Spec, spec, false)
	template := spec.Child("template")
	errs = append(errs, checkOwner(obj, []corev1.PodTemplateSpec{job.Spec.Template}, []*field.Path{template}, "CronJob", "JobSet")...)
	return Job{Roles: []Role{{
		Name:          v1alpha1.RoleWorker,
		Template:      template,
		Pod:           job.Spec.Template,
		Count:         spec.Child("parallelism"),
		Replicas:      1,
		Each:          n,
		Scheduler:     job.Spec.Template.Spec.SchedulerName,
		SchedulerPath: template.Child("spec", "schedulerName"),
		steps:         []any{"spec", "template"},
	}}}, errs
}

// indexed refuses a Job, or the template of one, whose pods have no fixed slots. indexed returns the number of its pods.
func indexed(job *batchv1.JobSpec, spec *field.Path, byDefault bool) (n int32, errs field.ErrorList) {
	mode := batchv1.NonIndexedCompletion
	if byDefault {
		mode = batchv1.IndexedCompletion
	}
	if job.CompletionMode != nil {
		mode = *job.CompletionMode
	}
	if mode != batchv1.IndexedCompletion {
		errs = append(errs, field.Invalid(spec.Child("completionMode"), mode,
			"must be Indexed: each pod of a gang has its own index; set it, with completions equal to parallelism"))
	}
	n = 1
	if job.Parallelism != nil {
		n = *job.Parallelism
	}
	errs = append(errs, CheckSize(n, spec.Child("parallelism"), WithoutUs)...)
	if n < 1 {
		errs = append(errs, field.Invalid(spec.Child("parallelism"), n,
			"must be at least 1; to create the Job without running it set spec.suspend"))
	}
	switch {
	case job.Completions == nil && byDefault && job.Parallelism == nil: // the API server sets both to 1 by default
	case job.Completions == nil:
		errs = append(errs, field.Required(spec.Child("completions"),
			fmt.Sprintf("all pods of a gang run together: set it to %d, as parallelism", n)))
	case *job.Completions != n:
		errs = append(errs, field.Invalid(spec.Child("completions"), *job.Completions,
			fmt.Sprintf("must equal parallelism (%d): all pods of a gang run together", n)))
	}
	return n, errs
}

// Place implements Kind.
func (k BatchJob) Place(pod *corev1.Pod) (Place, bool) {
	ref := madeBy(pod, k.GroupVersionKind())
	if ref == nil || pod.Labels[jobSetUID] != "" {
		return Place{}, false
	}
	return Place{Maker: ref.UID, Name: ref.Name, Role: v1alpha1.RoleWorker, Index: completionIndex(pod)}, true
}

// Release implements Kind: a pod is released when the selector of its Job no longer matches it. The Job controller then removes its owner
// reference and finalizer. It counts no failure and creates the index again in the same sync, without backoff and whatever backoffLimit is,
// also for a pod that is being deleted (getPodsForJob; pkg/controller/controller_ref_manager.go).
func (BatchJob) Release(_ *corev1.Pod, maker *unstructured.Unstructured) Release {
	r := Release{Remove: []string{"controller-uid", batchv1.ControllerUidLabel}}
	if maker == nil {
		return r
	}
	selector, _, _ := unstructured.NestedMap(maker.Object, "spec", "selector", "matchLabels")
	for _, key := range sortedKeys(selector) {
		if key != v1alpha1.LabelGang && key != r.Remove[0] && key != r.Remove[1] {
			r.Remove = append(r.Remove, key)
		}
	}
	return r
}

// Restarts implements Kind.
func (BatchJob) Restarts(pod *corev1.Pod) string {
	if pod.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return ""
	}
	return "spec.backoffLimit"
}

// State implements Kind.
func (BatchJob) State(obj *unstructured.Unstructured) State {
	job, err := decode[batchv1.Job](obj)
	if err != nil {
		return State{}
	}
	return JobState(job)
}

// JobState returns the state of a decoded batch Job.
func JobState(job *batchv1.Job) State {
	s := State{Ended: job.DeletionTimestamp != nil, Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend}
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobFailureTarget, batchv1.JobFailed:
			s.Ended, s.Failed = true, true
		case batchv1.JobComplete, batchv1.JobSuccessCriteriaMet:
			s.Ended = true
		case batchv1.JobSuspended:
		}
		if failed := c.Type == batchv1.JobFailed; failed || c.Type == batchv1.JobComplete {
			s.Final, s.Message = true, endText("Job", failed, c.Reason, c.Message)
		}
	}
	return s
}

// Fail implements Kind. Both ways are the Job controller's own (syncJob):
//
//   - spec.backoffLimit may be changed at any time. Lowered to the number of pods that failed so far, the next pod that fails
//     ends the Job in the same sync that counts it, before a replacement is created. The failed pods stay, so that their
//     logs and exit codes can be read. This serves restartPolicy Never, where a pod fails when its container ends.
//   - status condition FailureTarget, once true, is final: the Job controller deletes all pods that are left, creates no
//     more, and turns it into Failed with our reason and message. With restartPolicy OnFailure a container that ends starts
//     again, so that this comes at once; with Never it comes after some seconds, for pods that did not end or whose
//     failure a podFailurePolicy ignores.
//
// activeDeadlineSeconds would do as well, but shows people a deadline that they never set.
func (BatchJob) Fail(obj *unstructured.Unstructured, f Failure) Write {
	job, err := decode[batchv1.Job](obj)
	if err == nil && !f.Now && job.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyNever {
		limit := job.Status.Failed
		if u := job.Status.UncountedTerminatedPods; u != nil {
			limit += int32(len(u.Failed))
		}
		if job.Spec.BackoffLimit != nil && *job.Spec.BackoffLimit <= limit {
			return Write{}
		}
		return Write{Type: types.StrategicMergePatchType, Patch: map[string]any{"spec": map[string]any{"backoffLimit": int64(limit)}}}
	}
	return jobCondition(batchv1.JobFailureTarget, f.Reason, f.Message, f.At)
}

// Complete returns the write that ends a Job well whose remaining pods have no node: the Job controller deletes them, and turns the
// condition into Complete. It deletes pods that run as well, so that none may.
func (BatchJob) Complete(reason, message string, at time.Time) Write {
	return jobCondition(batchv1.JobSuccessCriteriaMet, reason, message, at)
}

// jobCondition returns the write of a condition that is true.
func jobCondition(kind batchv1.JobConditionType, reason, message string, now time.Time) Write {
	at := now.UTC().Format(timeFormat)
	condition := map[string]any{
		"type":               string(kind),
		"status":             string(corev1.ConditionTrue),
		"reason":             reason,
		"message":            message,
		"lastProbeTime":      at,
		"lastTransitionTime": at,
	}
	patch := map[string]any{"status": map[string]any{"conditions": []any{condition}}}
	return Write{Status: true, Type: types.StrategicMergePatchType, Patch: patch}
}
