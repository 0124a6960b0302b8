package kinds

import (
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// JobSet is the kind of sigs.k8s.io/jobset: several Jobs that belong together (v0.12.0: pkg/controllers).
type JobSet struct{}

// JobSet's keys.
const (
	jobSetUID          = "jobset.sigs.k8s.io/jobset-uid"
	jobSetName         = "jobset.sigs.k8s.io/jobset-name"
	jobSetRole         = "jobset.sigs.k8s.io/replicatedjob-name"
	jobSetIndex        = "jobset.sigs.k8s.io/job-index"
	jobSetExclusive    = "alpha.jobset.sigs.k8s.io/exclusive-topology"
	jobSetNodeSelector = "alpha.jobset.sigs.k8s.io/node-selector"
)

type jobSet struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ReplicatedJobs []replicatedJob `json:"replicatedJobs"`
		FailurePolicy  struct {
			RestartStrategy string `json:"restartStrategy"`
		} `json:"failurePolicy"`
		StartupPolicy struct {
			StartupPolicyOrder string `json:"startupPolicyOrder"`
		} `json:"startupPolicy"`
	} `json:"spec"`
}

type replicatedJob struct {
	Name      string                  `json:"name"`
	Replicas  *int32                  `json:"replicas"`
	Template  batchv1.JobTemplateSpec `json:"template"`
	DependsOn []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
	} `json:"dependsOn"`
}

// GroupVersionKind implements Kind.
func (JobSet) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
}

// Resource implements Kind.
func (JobSet) Resource() string { return "jobsets" }

// Read implements Kind: each replicated job is a role. A replicated job for whose completion others wait ends before training starts, and
// its pods are no members.
func (JobSet) Read(obj *unstructured.Unstructured) (Job, field.ErrorList) {
	set, err := decode[jobSet](obj)
	if err != nil {
		return Job{}, unreadable(obj, err)
	}
	spec := field.NewPath("spec")
	errs := set.refused(spec)
	before := map[string]bool{}
	for _, r := range set.Spec.ReplicatedJobs {
		for _, d := range r.DependsOn {
			before[d.Name] = before[d.Name] || d.Status == "Complete"
		}
	}
	var job Job
	var templates []corev1.PodTemplateSpec
	var paths []*field.Path
	for i, r := range set.Spec.ReplicatedJobs {
		at := spec.Child("replicatedJobs").Index(i)
		jobSpec := at.Child("template", "spec")
		role := Role{
			Name:          r.Name,
			Template:      jobSpec.Child("template"),
			Pod:           r.Template.Spec.Template,
			Count:         at.Child("replicas"),
			Replicas:      1,
			Before:        before[r.Name],
			Scheduler:     r.Template.Spec.Template.Spec.SchedulerName,
			SchedulerPath: jobSpec.Child("template", "spec", "schedulerName"),
			steps:         []any{"spec", "replicatedJobs", i, "template", "spec", "template"},
		}
		if r.Replicas != nil {
			role.Replicas = *r.Replicas
		}
		if role.Replicas < 0 || role.Replicas > v1alpha1.MaxMembers {
			errs = append(errs, field.Invalid(role.Count, role.Replicas, fmt.Sprintf("must be from 0 to %d", v1alpha1.MaxMembers)))
			continue
		}
		if role.Before {
			role.Each = 1
			if p := r.Template.Spec.Parallelism; p != nil {
				role.Each = *p
			}
		} else {
			var refused field.ErrorList
			role.Each, refused = indexed(&r.Template.Spec, jobSpec, true)
			errs = append(errs, refused...)
		}
		job.Roles = append(job.Roles, role)
		templates, paths = append(templates, role.Pod), append(paths, role.Template)
	}
	errs = append(errs, checkOwner(obj, templates, paths)...)
	return sized(job, spec.Child("replicatedJobs"), errs)
}

// refused returns errors for settings under which the JobSet's own controller would react to a replacement, or would not start all pods
// together.
func (set *jobSet) refused(spec *field.Path) (errs field.ErrorList) {
	exclusive := func(at *field.Path, annotations map[string]string) {
		domain, is := annotations[jobSetExclusive]
		if _, selects := annotations[jobSetNodeSelector]; is && !selects {
			errs = append(errs, field.Invalid(at.Key(jobSetExclusive), domain, fmt.Sprintf(
				"JobSet's controller deletes all pods of a Job whose first pod is replaced in another domain: write %s instead", v1alpha1.AnnotationTopologyRequired)))
		}
	}
	exclusive(field.NewPath("metadata", "annotations"), set.Metadata.Annotations)
	if s := set.Spec.FailurePolicy.RestartStrategy; s == "InPlaceRestart" {
		errs = append(errs, field.Invalid(spec.Child("failurePolicy", "restartStrategy"), s,
			"restarts every container when one is restarted or one pod is replaced, which Holdfast does for the failed ones alone: remove it"))
	}
	if s := set.Spec.StartupPolicy.StartupPolicyOrder; s == "InOrder" {
		errs = append(errs, field.Invalid(spec.Child("startupPolicy", "startupPolicyOrder"), s,
			"waits for one role's pods before it creates the next, and Holdfast starts none before all are there: write AnyOrder; ranks start together"))
	}
	for i, r := range set.Spec.ReplicatedJobs {
		at := spec.Child("replicatedJobs").Index(i)
		exclusive(at.Child("template", "metadata", "annotations"), r.Template.Annotations)
		for d, on := range r.DependsOn {
			if on.Status != "Complete" {
				errs = append(errs, field.Invalid(at.Child("dependsOn").Index(d).Child("status"), on.Status,
					"waits for pods that Holdfast starts together with these: remove it, or write Complete for a role that ends before training starts"))
			}
		}
	}
	return errs
}

// sized refuses a job without members, one with too many, and two roles of one name.
func sized(job Job, at *field.Path, errs field.ErrorList) (Job, field.ErrorList) {
	names := map[string]bool{}
	for _, r := range job.Roles {
		if names[r.Name] {
			errs = append(errs, field.Duplicate(at, r.Name))
		}
		names[r.Name] = true
	}
	if len(errs) == 0 {
		n := job.Members()
		errs = CheckSize(n, at, WithoutUs)
		if n < 1 {
			errs = append(errs, field.Invalid(at, n, "has no pods that train: give one role at least 1"))
		}
	}
	return job, errs
}

// Admit implements Kind: the templates of the Jobs get what a batch Job gets.
func (JobSet) Admit(obj *unstructured.Unstructured, a Admission) (warnings []string) {
	jobs, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "replicatedJobs")
	list, _ := jobs.([]any)
	var old *jobSet
	if a.Old != nil {
		old, _ = decode[jobSet](a.Old)
	}
	for i, role := range a.Job.Roles {
		if role.Before || i >= len(list) {
			continue
		}
		r, is := list[i].(map[string]any)
		if !is {
			continue
		}
		var was *batchv1.JobSpec
		if old != nil && i < len(old.Spec.ReplicatedJobs) {
			was = &old.Spec.ReplicatedJobs[i].Template.Spec
		}
		part := &unstructured.Unstructured{Object: r}
		for _, w := range admitSpec(part, []string{"template", "spec"}, was, role, a.Minor, true) {
			warnings = append(warnings, "spec.replicatedJobs["+strconv.Itoa(i)+"]."+w)
		}
	}
	return warnings
}

// Place implements Kind. The pod's owner is a Job; labels of JobSet name the set.
func (JobSet) Place(pod *corev1.Pod) (Place, bool) {
	uid := pod.Labels[jobSetUID]
	if uid == "" || madeBy(pod, BatchJob{}.GroupVersionKind()) == nil {
		return Place{}, false
	}
	return Place{
		Maker:   types.UID(uid),
		Name:    pod.Labels[jobSetName],
		Role:    pod.Labels[jobSetRole],
		Replica: index(pod, jobSetIndex),
		Index:   completionIndex(pod),
	}, true
}

// CheckChild refuses a batch Job whose pods would have a place in a JobSet that does not own the Job.
func CheckChild(job metav1.Object, template *corev1.PodTemplateSpec) field.ErrorList {
	uid, is := template.Labels[jobSetUID]
	at := field.NewPath("spec", "template", "metadata", "labels").Key(jobSetUID)
	switch ref := metav1.GetControllerOfNoCopy(job); {
	case IsChild(job) && (uid == "" || uid != string(ref.UID)):
		return field.ErrorList{field.Invalid(at, uid, fmt.Sprintf(
			"must be the UID of JobSet %s, which controls this Job: leave its Jobs to its controller, and annotate the JobSet", ref.Name))}
	case is && !IsChild(job):
		return field.ErrorList{field.Invalid(at, uid, "gives the pods a place in a JobSet, and this Job is a part of none: remove it")}
	}
	return nil
}

// CheckPlaces refuses a change of the labels that show which pods of its JobSet a batch Job has. CheckChild checks which JobSet that is.
func CheckPlaces(was, now *corev1.PodTemplateSpec) (errs field.ErrorList) {
	for _, key := range []string{jobSetName, jobSetRole, jobSetIndex} {
		if was.Labels[key] != now.Labels[key] {
			errs = append(errs, field.Invalid(field.NewPath("spec", "template", "metadata", "labels").Key(key), now.Labels[key], fmt.Sprintf(
				"says which pods of the JobSet these are, and its controller writes it: leave it %q", was.Labels[key])))
		}
	}
	return errs
}

// IsChild reports whether a batch Job is a part of a JobSet. Its pods are then in the gang of the JobSet.
func IsChild(job metav1.Object) bool {
	ref := metav1.GetControllerOfNoCopy(job)
	if ref == nil || ref.Kind != (JobSet{}).GroupVersionKind().Kind {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == (JobSet{}).GroupVersionKind().Group
}

// ChildOf reports whether a batch Job's name is that of a Job of this role of the set.
func (JobSet) ChildOf(set, role, job string) bool {
	i, ok := strings.CutPrefix(job, set+"-"+role+"-")
	n, err := strconv.Atoi(i)
	return ok && err == nil && n >= 0 && strconv.Itoa(n) == i
}

// Release implements Kind: the JobSet's controller reads only the conditions of its Jobs, never pods. So the pod is released from its Job.
func (JobSet) Release(pod *corev1.Pod, maker *unstructured.Unstructured) Release {
	return BatchJob{}.Release(pod, maker)
}

// Restarts implements Kind: each of its Jobs counts for itself, and one that fails restarts or ends the JobSet.
func (JobSet) Restarts(pod *corev1.Pod) string {
	if (BatchJob{}).Restarts(pod) == "" {
		return ""
	}
	return "spec.replicatedJobs[" + pod.Labels[jobSetRole] + "].template.spec.backoffLimit"
}

// State implements Kind.
func (JobSet) State(obj *unstructured.Unstructured) State {
	c, err := decode[conditioned](obj)
	if err != nil {
		return State{}
	}
	s := c.state("JobSet", "Completed", c.Spec.Suspend)
	s.Ended = s.Ended || obj.GetDeletionTimestamp() != nil
	return s
}

// Fail implements Kind: the condition Failed is final and uses up no maxRestarts, and the controller then deletes the running Jobs with
// their pods. Fail does not wait for pods: if a Job failed meanwhile, the failurePolicy could restart the set.
func (JobSet) Fail(obj *unstructured.Unstructured, f Failure) Write {
	patch := failedCondition(obj, f, []string{"lastTransitionTime"})
	patch["status"].(map[string]any)["terminalState"] = "Failed"
	return statusPatch(patch)
}
