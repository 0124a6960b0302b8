package webhook

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/internal/kinds"
)

// A container ends whole if the kernel's out-of-memory kill takes all of its processes (cgroup v2), or its first process is killed.
// No agent is left to restart anything, so admission decides what happens.

// restartWhole has the kubelet start the training container again in its pod, with all of the pod's volumes, where it
// dies whole. Rules that the user wrote stay as they are. In pods that restart their containers anyway there is no need.
func (t *training) restartWhole(minor int) {
	c := t.container()
	if minor < kinds.RestartRulesSince || t.spec.RestartPolicy != corev1.RestartPolicyNever || c.RestartPolicy != nil ||
		len(c.RestartPolicyRules) > 0 {
		return
	}
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	killed := &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{kinds.ExitKilled}}
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: killed}}
}
