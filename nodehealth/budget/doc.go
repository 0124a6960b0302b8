// Package budget decides which sick or silent nodes are given up, and when a decision is withdrawn. No more nodes with gangs are given up
// than the budgets of the cluster and of each failure domain allow. A silent node counts as dead only if its lease was not renewed and no
// agent on it reported. A suspected partition of the controller itself leads to no decision. Every decision can end. The same view gives
// the same plan, whatever the order of the nodes.
package budget
