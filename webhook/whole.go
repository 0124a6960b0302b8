package webhook

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// What becomes of a container that dies whole: the kernel's out-of-memory kill takes all of a container's processes
// (cgroup v2), or its first process is killed. No agent is left to restart anything, so this is settled at admission.

// restartRulesSince is the minor version of Kubernetes from which the API has restart rules of containers unless
// they are switched off, where it drops them. Servers before 1.34 refuse a pod that carries any.
const restartRulesSince = 35

// exitKilled is how a container ends that dies whole. The agent's init never ends with it by itself.
const exitKilled = 137

// restartWhole has the kubelet start the training container again in its pod, with all of the pod's volumes, where it
// dies whole. Rules that the user wrote stay as they are. In pods that restart their containers anyway there is no need.
func (t *training) restartWhole(minor int) {
	c := t.container()
	if minor < restartRulesSince || t.spec.RestartPolicy != corev1.RestartPolicyNever || c.RestartPolicy != nil ||
		len(c.RestartPolicyRules) > 0 {
		return
	}
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{exitKilled}}}}
}

// ignoreKills has a Job not count pods whose training container died whole, or that the cluster took away, so that
// backoffLimit is left for failures that are the Job's own: a training that fails again and again is ended by its
// coordinator. old is the Job before the change, nil where it is created: the field cannot change later, so that a
// change only keeps what creation wrote. It asks for podReplacementPolicy Failed, which such a Job has already. Every
// version gets it: whether restart rules act is the node's matter, whose kubelet may be older than the API server or
// have them switched off. Where they do no pod ends by 137, and nothing is left for this to ignore.
func ignoreKills(job, old *batchv1.Job, container string) {
	spec := &job.Spec
	if spec.PodFailurePolicy != nil || spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever ||
		ptr.Deref(spec.PodReplacementPolicy, "") != batchv1.Failed {
		return
	}
	if old == nil {
		spec.PodFailurePolicy = ignoredKills(container)
		return
	}
	if was := old.Spec.PodFailurePolicy; was != nil && slices.ContainsFunc(old.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return equality.Semantic.DeepEqual(was, ignoredKills(c.Name))
	}) {
		spec.PodFailurePolicy = was.DeepCopy()
	}
}

func ignoredKills(container string) *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: ptr.To(container),
				Operator:      batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values:        []int32{exitKilled},
			}},
	}}
}

// leastRestarts is the backoffLimit below which a Job with restartPolicy OnFailure is warned of.
const leastRestarts = 10

// wholeWarnings tells where the Job ends though its training could go on, and where a rule of the user's may have
// nothing left to act on.
func wholeWarnings(job *batchv1.Job, container string, minor int) (warnings []string) {
	spec := field.NewPath("spec")
	least := max(leastRestarts, parallelism(job))
	limit := ptr.Deref(job.Spec.BackoffLimit, 6)
	if job.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && limit < least {
		warnings = append(warnings, fmt.Sprintf("%s: with restartPolicy OnFailure the Job ends once its containers were killed whole (out of memory) %d times, in all pods together; write %d or more, or restartPolicy Never",
			spec.Child("backoffLimit"), max(limit, 1), least))
	}
	c := slices.IndexFunc(job.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if minor < restartRulesSince || job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever || job.Spec.PodFailurePolicy == nil ||
		c < 0 || job.Spec.Template.Spec.Containers[c].RestartPolicy != nil {
		return warnings
	}
	for i, rule := range job.Spec.PodFailurePolicy.Rules {
		if names(rule.OnExitCodes, container, exitKilled) && rule.Action != batchv1.PodFailurePolicyActionIgnore {
			warnings = append(warnings, fmt.Sprintf("%s: container %s may be started again in its pod where it ends with %d, if its node's kubelet has restart rules, and then the rule does not see it; set restartPolicy: Never on the container to have the rule decide",
				spec.Child("podFailurePolicy", "rules").Index(i), container, exitKilled))
		}
	}
	return warnings
}

// names says whether the user's rule was written for this exit code of the container.
func names(rule *batchv1.PodFailurePolicyOnExitCodesRequirement, container string, code int32) bool {
	return rule != nil && (rule.ContainerName == nil || *rule.ContainerName == container) &&
		rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && slices.Contains(rule.Values, code)
}
