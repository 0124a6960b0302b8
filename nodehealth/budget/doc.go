// Package budget decides which sick or silent nodes are given up (decision Evict: the pods of gangs there are replaced), and when each
// decision is withdrawn. The budget is the number of nodes with gangs that may be given up at the same time.
//   - While the budget of the cluster or of a node's failure domain is used up, no further node with a gang is given up there.
//   - A silent node counts as dead only if its lease was not renewed in time and no agent on it reported in time.
//   - While so many leases are not renewed that the controller itself may be cut off, no further node is declared dead.
//   - Every decision is withdrawn once its cause is over.
//   - The plan depends only on the view and the time, not on the order of the nodes in the view.
package budget
