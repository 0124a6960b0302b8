// Package replace proves on real kubelets and with the real Job controller that pods of a job are replaced while the others keep
// their containers: for a sick node, a dead one, one that is cut off or deleted, one that shuts down or is short of memory, a deleted
// pod and a drained node, whatever the job's restart policy, and without using up its backoffLimit. Containers that are killed whole are
// started again in their pods. So it is also where faults meet: a termination in a recovery, two nodes at
// once, a budget of the user's that forbids evictions, the API server away, and the leaders lost with the node; and training is left
// alone where it may: by a verdict that is taken back, and by a kubelet that is silent.
package replace
