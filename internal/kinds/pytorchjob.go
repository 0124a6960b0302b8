package kinds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// PyTorchJob is the kind of training-operator (v1.9.3: pkg/controller.v1/pytorch, pkg/core).
type PyTorchJob struct{}

// FoundBy is the label by which training-operator finds the pods of a job; its value is the job's name. The operator counts a running pod
// that is being deleted as failed, which ends the job under restartPolicy Never. So the label is removed before the deletion begins, and
// the operator does not find the pod any more.
const FoundBy = kubeflowName

// The operator's keys.
const (
	kubeflowName  = "training.kubeflow.org/job-name"
	kubeflowRole  = "training.kubeflow.org/replica-type"
	kubeflowIndex = "training.kubeflow.org/replica-index"
)

type pyTorchJob struct {
	Spec struct {
		Processes *string `json:"nprocPerNode"`
		RunPolicy struct {
			BackoffLimit     *int32 `json:"backoffLimit"`
			SchedulingPolicy struct {
				MinAvailable *int32 `json:"minAvailable"`
			} `json:"schedulingPolicy"`
		} `json:"runPolicy"`
		ElasticPolicy *struct{} `json:"elasticPolicy"`
		Replicas      map[string]struct {
			Replicas      *int32                 `json:"replicas"`
			RestartPolicy string                 `json:"restartPolicy"`
			Template      corev1.PodTemplateSpec `json:"template"`
		} `json:"pytorchReplicaSpecs"`
	} `json:"spec"`
}

// GroupVersionKind implements Kind.
func (PyTorchJob) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"}
}

// Resource implements Kind.
func (PyTorchJob) Resource() string { return "pytorchjobs" }

// Read implements Kind: the master is the first role, then the workers follow, in the order of the RANK that the operator sets.
func (PyTorchJob) Read(obj *unstructured.Unstructured) (Job, field.ErrorList) {
	p, err := decode[pyTorchJob](obj)
	if err != nil {
		return Job{}, unreadable(obj, err)
	}
	spec := field.NewPath("spec")
	all := spec.Child("pytorchReplicaSpecs")
	var errs field.ErrorList
	if p.Spec.ElasticPolicy != nil {
		errs = append(errs, field.Forbidden(spec.Child("elasticPolicy"),
			"changes the ranks' variables and when the job has succeeded: remove it; Holdfast restarts ranks without it, and the number of pods is fixed"))
	}
	roles := map[string]Role{}
	var templates []corev1.PodTemplateSpec
	var paths []*field.Path
	for _, key := range sortedKeys(p.Spec.Replicas) {
		r, at, name := p.Spec.Replicas[key], all.Key(key), strings.ToLower(key)
		role := Role{
			Name:          name,
			Template:      at.Child("template"),
			Pod:           r.Template,
			Count:         at.Child("replicas"),
			Replicas:      1,
			Each:          1,
			Container:     "pytorch",
			Scheduler:     r.Template.Spec.SchedulerName,
			SchedulerPath: at.Child("template", "spec", "schedulerName"),
			steps:         []any{"spec", "pytorchReplicaSpecs", key, "template"},
		}
		if r.Replicas != nil {
			role.Each = *r.Replicas
		}
		_, twice := roles[name]
		switch {
		case name != "master" && name != "worker" || twice:
			errs = append(errs, field.Invalid(at, key, "must be Master or Worker, once each"))
		case name == "master" && role.Each != 1:
			errs = append(errs, field.Invalid(role.Count, role.Each, "must be 1: the master is rank 0"))
		case role.Each < 0 || role.Each > v1alpha1.MaxMembers:
			errs = append(errs, field.Invalid(role.Count, role.Each, fmt.Sprintf("must be from 0 to %d", v1alpha1.MaxMembers)))
		}
		roles[name] = role
		templates, paths = append(templates, role.Pod), append(paths, role.Template)
	}
	var job Job
	for _, name := range []string{"master", "worker"} {
		if role, is := roles[name]; is {
			job.Roles = append(job.Roles, role)
		}
	}
	_, mastered := roles["master"]
	for i := range job.Roles {
		job.Roles[i].Env = p.env(job.Members(), mastered)
	}
	errs = append(errs, checkOwner(obj, templates, paths)...)
	return sized(job, all, errs)
}

// env returns the variables that the operator sets. It sets those of the master only if there is one.
func (p *pyTorchJob) env(n int32, mastered bool) []corev1.EnvVar {
	processes := "auto"
	if p.Spec.Processes != nil {
		processes = *p.Spec.Processes
	}
	env := []corev1.EnvVar{
		{Name: "PYTHONUNBUFFERED", Value: "1"},
		{Name: "PET_NPROC_PER_NODE", Value: processes},
		{Name: "PET_NNODES", Value: strconv.Itoa(int(n))},
	}
	if !mastered {
		return env
	}
	world := int(n)
	if each, err := strconv.ParseUint(processes, 10, 16); err == nil {
		world *= int(each)
	}
	env = append(env, corev1.EnvVar{Name: "WORLD_SIZE", Value: strconv.Itoa(world)})
	return append(env, later("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "RANK", "PET_NODE_RANK")...)
}

// Admit implements Kind. Admit writes nothing; restart policies stay.
func (PyTorchJob) Admit(obj *unstructured.Unstructured, a Admission) (warnings []string) {
	p, err := decode[pyTorchJob](obj)
	if err != nil {
		return nil // Read refuses it
	}
	run := field.NewPath("spec", "runPolicy")
	n := a.Job.Members()
	if least := p.Spec.RunPolicy.SchedulingPolicy.MinAvailable; least != nil && *least < n {
		warnings = append(warnings, fmt.Sprintf("%s: the operator's group may be placed with %d of %d pods, and no rank starts before all are there; write %d",
			run.Child("schedulingPolicy", "minAvailable"), *least, n, n))
	}
	for _, key := range sortedKeys(p.Spec.Replicas) {
		if p.Spec.Replicas[key].RestartPolicy == string(corev1.RestartPolicyAlways) {
			warnings = append(warnings, endless(field.NewPath("spec", "pytorchReplicaSpecs").Key(key).Child("restartPolicy"), "Always", "PyTorchJob"))
		}
	}
	limit, least := p.Spec.RunPolicy.BackoffLimit, max(leastRestarts, n)
	for _, key := range sortedKeys(p.Spec.Replicas) {
		policy := p.Spec.Replicas[key].RestartPolicy
		if limit != nil && *limit < least && slices.Contains([]string{"OnFailure", "Always", "ExitCode"}, policy) {
			return append(warnings, fmt.Sprintf("%s: with restartPolicy %s the job ends once its containers were killed whole (out of memory) %d times, in all pods together; write %d or more, or restartPolicy Never",
				run.Child("backoffLimit"), policy, max(*limit, 1), least))
		}
	}
	return warnings
}

// Place implements Kind.
func (k PyTorchJob) Place(pod *corev1.Pod) (Place, bool) {
	ref := madeBy(pod, k.GroupVersionKind())
	if ref == nil {
		return Place{}, false
	}
	return Place{Maker: ref.UID, Name: ref.Name, Role: pod.Labels[kubeflowRole], Index: index(pod, kubeflowIndex)}, true
}

// Release implements Kind: the operator finds its pods by labels, and counts a pod that is being deleted as failed, which ends the job
// under restartPolicy Never. Without the label the pod does not belong to the job, under any policy. The operator cannot create a pod of
// the same name until the old pod is gone. Owner and role stay, so that the end of the old pod triggers the operator.
func (PyTorchJob) Release(*corev1.Pod, *unstructured.Unstructured) Release {
	return Release{Remove: []string{kubeflowName}, After: true}
}

// Restarts implements Kind: the operator adds up restarts of pods that the kubelet restarts.
func (PyTorchJob) Restarts(pod *corev1.Pod) string {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return ""
	}
	return "spec.runPolicy.backoffLimit"
}

// State implements Kind.
func (PyTorchJob) State(obj *unstructured.Unstructured) State {
	c, err := decode[conditioned](obj)
	if err != nil {
		return State{}
	}
	s := c.state("PyTorchJob", "Succeeded", c.Spec.RunPolicy.Suspend)
	s.Ended = s.Ended || obj.GetDeletionTimestamp() != nil
	return s
}

// Fail implements Kind: after condition Failed the operator creates nothing more. With cleanPodPolicy None, the default, it leaves running
// pods, which the kubelet restarts for ever; so these are evicted. ttlSecondsAfterFinished counts from the completion time.
func (PyTorchJob) Fail(obj *unstructured.Unstructured, f Failure) Write {
	patch := failedCondition(obj, f, []string{"lastUpdateTime", "lastTransitionTime"}, "Running")
	if _, has, _ := unstructured.NestedString(obj.Object, "status", "completionTime"); !has {
		patch["status"].(map[string]any)["completionTime"] = f.At.UTC().Format(timeFormat)
	}
	w := statusPatch(patch)
	w.Evict = true
	return w
}
