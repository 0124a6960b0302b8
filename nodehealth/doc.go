// Package nodehealth computes one verdict about a node from signals of its GPUs and its kernel. Fold takes the signals,
// and Assess returns the present verdict. Catalogue has one row per cause: the action, the remedy, and the condition
// under which the cause is over. Every cause has such a condition.
//
// If the driver of a GPU can report a recovery action, an Xid whose row has Confirm only excludes the node until the
// driver reports one. The package uses no Kubernetes, no clock and no I/O.
package nodehealth
