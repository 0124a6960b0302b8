package kinds

import (
	"encoding/json"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Settings of a Job with which a pod can be replaced, and a container that is killed whole is restarted, without the Job's own policy. The
// kernel's out-of-memory kill may end all processes of a container (cgroup v2), or its first process. Then no agent is left to restart
// anything, so admission writes these settings.

const (
	// RestartRulesSince is N of the first Kubernetes 1.N in which restart rules of containers are on by default. If they are switched off,
	// the API server drops them. Servers before 1.34 refuse a pod that has one.
	RestartRulesSince = 35
	// ExitKilled is the exit code of a container that is killed whole. The agent's init never ends with it by itself.
	ExitKilled = 137
	// leastRestarts is the limit of restarts below which a job with restartPolicy OnFailure gets a warning.
	leastRestarts = 10
)

// Admit implements Kind.
func (k BatchJob) Admit(obj *unstructured.Unstructured, a Admission) []string {
	var was *batchv1.JobSpec
	if a.Old != nil {
		if old, err := decode[batchv1.Job](a.Old); err == nil {
			was = &old.Spec
		}
	}
	return admitSpec(obj, []string{"spec"}, was, a.Job.Roles[0], a.Minor, namesReplacementPolicy(obj))
}

// admitSpec writes the two policies into a Job's spec at a path of the object. named is true if its user wrote a podReplacementPolicy.
func admitSpec(obj *unstructured.Unstructured, at []string, was *batchv1.JobSpec, role Role, minor int, named bool) (warnings []string) {
	m, _, _ := unstructured.NestedFieldNoCopy(obj.Object, at...)
	fields, is := m.(map[string]any)
	spec := &batchv1.JobSpec{}
	if !is || runtime.DefaultUnstructuredConverter.FromUnstructured(fields, spec) != nil {
		return nil // Read refuses it
	}
	path := field.NewPath(at[0], at[1:]...)
	if named && spec.PodReplacementPolicy != nil && *spec.PodReplacementPolicy == batchv1.TerminatingOrFailed {
		warnings = append(warnings, fmt.Sprintf("%s: with TerminatingOrFailed each pod that is deleted or drained uses up backoffLimit and is re-created "+
			"only after a growing back-off; write Failed, or remove the field", path.Child("podReplacementPolicy")))
	} else {
		failed := batchv1.Failed
		spec.PodReplacementPolicy = &failed
		fields["podReplacementPolicy"] = string(failed)
	}
	warnings = append(warnings, wholeWarnings(spec, path, role, minor)...)
	if ignoreKills(spec, was, role.Container) {
		policy, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec.PodFailurePolicy)
		if err != nil {
			panic(err) // plain numbers and strings always convert
		}
		fields["podFailurePolicy"] = policy
	}
	return warnings
}

// namesReplacementPolicy reports whether the applied object names the policy, from the records of client-side and server-side apply. The
// API server sets a default for the policy of a Job, but not of a template, before it calls the webhook.
func namesReplacementPolicy(obj *unstructured.Unstructured) bool {
	type applied struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	var client applied
	if json.Unmarshal([]byte(obj.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), &client) == nil && client.Spec["podReplacementPolicy"] != nil {
		return true
	}
	for _, m := range obj.GetManagedFields() {
		var server struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.Operation == metav1.ManagedFieldsOperationApply && m.FieldsV1 != nil &&
			json.Unmarshal(m.FieldsV1.GetRawBytes(), &server) == nil && server.Spec["f:podReplacementPolicy"] != nil {
			return true
		}
	}
	return false
}

// ignoreKills makes a Job not count pods whose training container was killed whole, or that the cluster removed, so that backoffLimit is
// left for the Job's own failures. Its coordinator ends a training that fails again and again. was is the Job before the change, nil if it
// is created: the field cannot change later, so a change only keeps what creation wrote. The policy requires podReplacementPolicy Failed,
// which such a Job already has. It is written for every version, because the node decides whether restart rules work: its kubelet may be
// older than the API server, or have them switched off. Where they work, no pod ends with 137.
func ignoreKills(spec, was *batchv1.JobSpec, container string) (written bool) {
	if spec.PodFailurePolicy != nil || spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever ||
		spec.PodReplacementPolicy == nil || *spec.PodReplacementPolicy != batchv1.Failed {
		return false
	}
	if was == nil {
		spec.PodFailurePolicy = ignoredKills(container)
		return true
	}
	if p := was.PodFailurePolicy; p != nil && slices.ContainsFunc(was.Template.Spec.Containers, func(c corev1.Container) bool {
		return equality.Semantic.DeepEqual(p, ignoredKills(c.Name))
	}) {
		spec.PodFailurePolicy = p.DeepCopy()
		return true
	}
	return false
}

func ignoredKills(container string) *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: &container,
				Operator:      batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values:        []int32{ExitKilled},
			}},
	}}
}

// wholeWarnings returns warnings about limits at which the Job ends though its training could go on, and about rules of the user that may
// have no effect.
func wholeWarnings(job *batchv1.JobSpec, spec *field.Path, role Role, minor int) (warnings []string) {
	least := max(leastRestarts, role.Each)
	limit := int32(6)
	if job.BackoffLimit != nil {
		limit = *job.BackoffLimit
	}
	if job.Template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && limit < least {
		warnings = append(warnings, fmt.Sprintf("%s: with restartPolicy OnFailure the Job fails after %d out-of-memory kills of its containers, counted over all pods; write %d or more, or restartPolicy Never",
			spec.Child("backoffLimit"), max(limit, 1), least))
	}
	c := slices.IndexFunc(job.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == role.Container })
	if minor < RestartRulesSince || job.Template.Spec.RestartPolicy != corev1.RestartPolicyNever || job.PodFailurePolicy == nil ||
		c < 0 || job.Template.Spec.Containers[c].RestartPolicy != nil {
		return warnings
	}
	for i, rule := range job.PodFailurePolicy.Rules {
		if names(rule.OnExitCodes, role.Container, ExitKilled) && rule.Action != batchv1.PodFailurePolicyActionIgnore {
			warnings = append(warnings, fmt.Sprintf("%s: where the node's kubelet supports restart rules, it restarts container %s in its pod after exit code %d, and this rule does not apply; set restartPolicy: Never on the container to apply it",
				spec.Child("podFailurePolicy", "rules").Index(i), role.Container, ExitKilled))
		}
	}
	return warnings
}

// names reports whether the user's rule was written for this exit code of the container.
func names(rule *batchv1.PodFailurePolicyOnExitCodesRequirement, container string, code int32) bool {
	return rule != nil && (rule.ContainerName == nil || *rule.ContainerName == container) &&
		rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && slices.Contains(rule.Values, code)
}
