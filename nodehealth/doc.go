// Package nodehealth computes one verdict about a node from signals of its GPUs and its kernel. Fold takes the signals,
// and Assess returns the present verdict. Catalogue has one row per cause: the action, the remedy, and the condition
// under which the cause is over. Every cause has such a condition.
//
// Some rows of the Catalogue have Confirm. If the driver of the GPU can report a recovery action, an Xid of such a row
// at first only excludes the node. The node is evicted after the driver has reported a recovery action. The package
// uses no Kubernetes, no clock and no I/O.
package nodehealth
