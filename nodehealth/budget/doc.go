// Package budget decides which sick or silent nodes are given up, and when such a decision is withdrawn.
//
//   - No node with a gang is newly given up while as many nodes are given up as the budget of the cluster, or of its
//     failure domain, allows.
//   - A silent node counts as dead only if its lease was not renewed in time and no agent on it reported in time.
//   - While so many leases are not renewed that the controller itself may be cut off, no further node is declared dead.
//   - Every decision is withdrawn once its cause is over.
//   - The same view gives the same plan, in whatever order the nodes are listed.
package budget
