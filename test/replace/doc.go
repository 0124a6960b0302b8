// Package replace tests, on real kubelets and with Kubernetes' Job controller, that single pods of a job are replaced
// while the other pods keep their containers.
//
//   - A pod is replaced for a node that is sick, dead, cut off, deleted, shutting down or short of memory, when the pod
//     is deleted, and when its node is drained.
//   - A replacement works with each restart policy, and does not use up the job's backoffLimit.
//   - A container that is killed whole is restarted in its pod.
//   - Pods are also replaced in combined faults: a termination during a recovery, two nodes at once, a disruption
//     budget that forbids evictions, an unavailable API server, and leaders that die with their node.
//   - Training goes on undisturbed when a verdict is withdrawn, or when only a kubelet is silent.
package replace
