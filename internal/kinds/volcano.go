package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// VolcanoJob is the kind Job of Volcano (v1.14.1: pkg/controllers/job; the rules used here are the same since 1.10).
type VolcanoJob struct{}

// Volcano's keys.
const (
	volcanoTask    = "volcano.sh/task-spec"
	volcanoIndex   = "volcano.sh/task-index"
	volcanoVersion = "volcano.sh/job-version"

	// volcanoScheduler is the scheduler of a Job that names none.
	volcanoScheduler = "volcano"
)

type volcanoJob struct {
	Spec struct {
		Scheduler    string              `json:"schedulerName"`
		MinAvailable int32               `json:"minAvailable"`
		Tasks        []volcanoRole       `json:"tasks"`
		Policies     []volcanoPolicy     `json:"policies"`
		Plugins      map[string][]string `json:"plugins"`
	} `json:"spec"`
	Status struct {
		State struct {
			Phase   string `json:"phase"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"state"`
	} `json:"status"`
}

type volcanoRole struct {
	Name            string                 `json:"name"`
	Replicas        int32                  `json:"replicas"`
	Template        corev1.PodTemplateSpec `json:"template"`
	Policies        []volcanoPolicy        `json:"policies"`
	DependsOn       *struct{}              `json:"dependsOn"`
	PartitionPolicy *struct{}              `json:"partitionPolicy"`
}

type volcanoPolicy struct {
	Action string   `json:"action"`
	Event  string   `json:"event"`
	Events []string `json:"events"`
}

func (p volcanoPolicy) on(event string) bool {
	return p.Event == event || slices.Contains(p.Events, event)
}

// GroupVersionKind implements Kind.
func (VolcanoJob) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job"}
}

// Resource implements Kind.
func (VolcanoJob) Resource() string { return "jobs" }

// Read implements Kind: each task is a role, in the order of the object. The master of plugin pytorch comes first, because its RANK is 0.
func (VolcanoJob) Read(obj *unstructured.Unstructured) (Job, field.ErrorList) {
	v, err := decode[volcanoJob](obj)
	if err != nil {
		return Job{}, unreadable(obj, err)
	}
	spec := field.NewPath("spec")
	errs := v.refused(spec)
	var job Job
	var templates []corev1.PodTemplateSpec
	var paths []*field.Path
	env := v.env()
	for i, t := range v.Spec.Tasks {
		at := spec.Child("tasks").Index(i)
		role := Role{
			Name:          t.Name,
			Template:      at.Child("template"),
			Pod:           t.Template,
			Count:         at.Child("replicas"),
			Replicas:      1,
			Each:          t.Replicas,
			Scheduler:     t.Template.Spec.SchedulerName,
			SchedulerPath: at.Child("template", "spec", "schedulerName"),
			Env:           env,
			steps:         []any{"spec", "tasks", i, "template"},
		}
		if role.Scheduler == "" {
			role.Scheduler, role.SchedulerPath = cmp.Or(v.Spec.Scheduler, volcanoScheduler), spec.Child("schedulerName")
		}
		if t.Name == "" {
			role.Name = fmt.Sprintf("default%d", i)
		}
		if role.Each < 0 || role.Each > v1alpha1.MaxMembers {
			errs = append(errs, field.Invalid(role.Count, role.Each, fmt.Sprintf("must be from 0 to %d", v1alpha1.MaxMembers)))
			continue
		}
		templates, paths = append(templates, role.Pod), append(paths, role.Template)
		if role.Name == v.master() {
			job.Roles = slices.Insert(job.Roles, 0, role)
		} else {
			job.Roles = append(job.Roles, role)
		}
	}
	errs = append(errs, checkOwner(obj, templates, paths, "CronJob", "JobFlow")...)
	return sized(job, spec.Child("tasks"), errs)
}

// master returns the task to which plugin pytorch gives RANK 0; "": the plugin is not used.
func (v *volcanoJob) master() string {
	if _, is := v.Spec.Plugins["pytorch"]; !is {
		return ""
	}
	name, _ := v.flag("master")
	return cmp.Or(name, "master")
}

// flag returns the value of a flag of plugin pytorch, or the argument after it; is: the flag is there, and is not "false".
func (v *volcanoJob) flag(name string) (value string, is bool) {
	arguments := v.Spec.Plugins["pytorch"]
	for i, a := range arguments {
		flag, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if flag != name || !strings.HasPrefix(a, "-") {
			continue
		}
		if !has && i+1 < len(arguments) {
			value = arguments[i+1]
		}
		return value, !has || !slices.Contains([]string{"0", "f", "F", "false", "FALSE", "False"}, value)
	}
	return "", false
}

// env returns the variables that Volcano's plugins set. Plugin pytorch implies plugin svc.
func (v *volcanoJob) env() []corev1.EnvVar {
	var names []string
	_, pytorch := v.Spec.Plugins["pytorch"]
	if pytorch {
		names = append(names, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
	}
	if _, svc := v.Spec.Plugins["svc"]; svc || pytorch {
		for _, t := range v.Spec.Tasks {
			task := strings.ToUpper(strings.ReplaceAll(t.Name, "-", "_"))
			names = append(names, "VC_"+task+"_HOSTS", "VC_"+task+"_NUM")
		}
	}
	if _, is := v.Spec.Plugins["env"]; is {
		names = append(names, "VK_TASK_INDEX", "VC_TASK_INDEX")
	}
	return later(names...)
}

// refused returns errors for settings under which Volcano would restart the job at a replacement, or would not start all pods together, and
// for settings that Holdfast does not support yet.
func (v *volcanoJob) refused(spec *field.Path) (errs field.ErrorList) {
	policies := func(at *field.Path, all []volcanoPolicy) {
		for i, p := range all {
			for _, event := range []string{"Unknown", "*"} {
				if p.on(event) {
					errs = append(errs, field.Invalid(at.Index(i), event, fmt.Sprintf(
						"Volcano reports event Unknown whenever one pod of a running job is replaced, and would do %s then: name PodFailed and PodEvicted instead", p.Action)))
				}
			}
		}
	}
	policies(spec.Child("policies"), v.Spec.Policies)
	if _, waits := v.flag("wait-master-enabled"); waits {
		errs = append(errs, field.Forbidden(spec.Child("plugins").Key("pytorch"),
			"--wait-master-enabled has the workers wait for the master's rank, which starts once all workers have: remove the argument"))
	}
	for _, plugin := range []string{"mpi", "tensorflow", "ray"} {
		if _, is := v.Spec.Plugins[plugin]; is {
			errs = append(errs, field.Forbidden(spec.Child("plugins").Key(plugin),
				"its tasks wait for other pods' commands, and holdfast does not support them yet: train with plugin pytorch, svc or env, or "+WithoutUs))
		}
	}
	for i, t := range v.Spec.Tasks {
		at := spec.Child("tasks").Index(i)
		policies(at.Child("policies"), t.Policies)
		if t.DependsOn != nil {
			errs = append(errs, field.Forbidden(at.Child("dependsOn"),
				"waits for another task's pods, and Holdfast starts none before all are there: remove it; ranks start together"))
		}
		if t.Name == "ps" || t.Name == "pserver" {
			errs = append(errs, field.Invalid(at.Child("name"), t.Name,
				"a parameter server has no rank, and holdfast does not support such tasks yet: train without one, or "+WithoutUs))
		}
		if t.PartitionPolicy != nil {
			errs = append(errs, field.Forbidden(at.Child("partitionPolicy"),
				"places the task in parts, and a gang is placed whole: remove it; "+v1alpha1.AnnotationSliceSize+" keeps pods together"))
		}
		for c := range t.Template.Spec.Containers {
			words := strings.Fields(strings.Join(slices.Concat(t.Template.Spec.Containers[c].Command, t.Template.Spec.Containers[c].Args), " "))
			if slices.ContainsFunc(words, isSSHD) {
				errs = append(errs, field.Forbidden(at.Child("template", "spec", "containers").Index(c),
					"starts sshd, so that its ranks are started by another pod, which holdfast does not support yet: start them by torchrun, or "+WithoutUs))
			}
		}
	}
	return errs
}

func isSSHD(word string) bool {
	word = strings.TrimRight(word, ";&")
	return word == "sshd" || strings.HasSuffix(word, "/sshd")
}

// Admit implements Kind. Admit writes nothing; the user's policies stay.
func (VolcanoJob) Admit(obj *unstructured.Unstructured, a Admission) (warnings []string) {
	v, err := decode[volcanoJob](obj)
	if err != nil {
		return nil // Read refuses it
	}
	if n := a.Job.Members(); v.Spec.Scheduler != v1alpha1.SchedulerName && v.Spec.MinAvailable > 0 && v.Spec.MinAvailable < n {
		warnings = append(warnings, fmt.Sprintf("spec.minAvailable: Volcano's scheduler may place %d pods and leave the other %d waiting, without which no rank starts; write %d",
			v.Spec.MinAvailable, n-v.Spec.MinAvailable, n))
	}
	policies := func(at *field.Path, all []volcanoPolicy) {
		for i, p := range all {
			restarts := strings.HasPrefix(p.Action, "Restart") || p.Action == "AbortJob" || p.Action == "TerminateJob"
			switch {
			case restarts && (p.on("PodEvicted") || p.on("PodFailed")):
				warnings = append(warnings, fmt.Sprintf(
					"%s: %s does not act on a pod that Holdfast replaces or that its node ends; on a pod that fails otherwise before Holdfast can replace it, it does", at.Index(i), p.Action))
			case restarts && p.on("TaskFailed"):
				warnings = append(warnings, fmt.Sprintf(
					"%s: %s acts once the containers of a task were restarted as often as its maxRetry says (3), also where they were killed whole and restarted in their pods", at.Index(i), p.Action))
			}
		}
	}
	spec := field.NewPath("spec")
	policies(spec.Child("policies"), v.Spec.Policies)
	for i, t := range v.Spec.Tasks {
		at := spec.Child("tasks").Index(i)
		policies(at.Child("policies"), t.Policies)
		if p := t.Template.Spec.RestartPolicy; p == "" || p == corev1.RestartPolicyAlways {
			warnings = append(warnings, endless(at.Child("template", "spec", "restartPolicy"), "Always, the default,", "Volcano Job"))
		}
	}
	return warnings
}

// Place implements Kind.
func (k VolcanoJob) Place(pod *corev1.Pod) (Place, bool) {
	ref := madeBy(pod, k.GroupVersionKind())
	if ref == nil {
		return Place{}, false
	}
	return Place{Maker: ref.UID, Name: ref.Name, Role: pod.Annotations[volcanoTask], Index: index(pod, volcanoIndex)}, true
}

// Release implements Kind: the annotation makes the pod one of an earlier version of the job. Volcano's controller answers events of such a
// pod only with a sync, which creates the missing pod. No policy applies, nothing is counted, and the PodGroup stays
// (job_controller_util.go). That also holds for a pod that is being deleted.
func (VolcanoJob) Release(*corev1.Pod, *unstructured.Unstructured) Release {
	return Release{Annotate: map[string]string{volcanoVersion: "-1"}, After: true}
}

// Restarts implements Kind: at maxRetry restarts in all pods of a task event TaskFailed fires, whoever restarts them.
func (VolcanoJob) Restarts(pod *corev1.Pod) string {
	return "spec.tasks[" + pod.Annotations[volcanoTask] + "].maxRetry (event TaskFailed)"
}

// State implements Kind.
func (VolcanoJob) State(obj *unstructured.Unstructured) State {
	v, err := decode[volcanoJob](obj)
	if err != nil {
		return State{}
	}
	phase := v.Status.State.Phase
	s := State{
		Failed:    slices.Contains([]string{"Failed", "Terminating", "Terminated"}, phase),
		Final:     slices.Contains([]string{"Failed", "Terminated", "Completed"}, phase),
		Suspended: phase == "Aborting" || phase == "Aborted",
	}
	s.Ended = s.Failed || s.Final || phase == "Completing" || obj.GetDeletionTimestamp() != nil
	if s.Final {
		s.Message = endText("Volcano Job", s.Failed, v.Status.State.Reason, v.Status.State.Message)
	}
	return s
}

// PodGroup returns the name of the PodGroup that Volcano's controller creates for a Job, before any of its pods.
func (VolcanoJob) PodGroup(job metav1.Object) string {
	return job.GetName() + "-" + string(job.GetUID())
}

// Fail implements Kind: in phase Failed the controller ends running pods, keeps failed pods and the reason, and creates no more pods. Fail
// does not wait for pods: if a pod failed meanwhile, the user's policies would apply.
func (VolcanoJob) Fail(obj *unstructured.Unstructured, f Failure) Write {
	state := map[string]any{
		"phase":              "Failed",
		"reason":             f.Reason,
		"message":            f.Message,
		"lastTransitionTime": f.At.UTC().Format(timeFormat),
	}
	return statusPatch(map[string]any{
		"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion()}, // otherwise a job that has completed since would fail
		"status":   map[string]any{"state": state},
	})
}
