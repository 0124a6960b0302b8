// Package replace proves on real kubelets and with the real Job controller that one pod of a job is replaced while the others keep
// their containers: for a sick node, a dead one, a deleted pod and a drained node, whatever the job's restart policy, and without
// using up its backoffLimit.
package replace
