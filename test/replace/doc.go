// Package replace tests on real kubelets and with the real Job controller that pods of a job are replaced while the
// others keep their containers: for a sick node, a dead one, one that is cut off or deleted, one that shuts down or
// is short of memory, a deleted pod and a drained node, whatever the job's restart policy, and without using up its
// backoffLimit. Containers that are killed whole are restarted in their pods. It also tests combined faults: a termination during a
// recovery, two nodes at once, a user's budget that forbids evictions, an unavailable API server, and leaders lost with their node; and
// that training is not disturbed when a verdict is withdrawn or only a kubelet is silent.
package replace
