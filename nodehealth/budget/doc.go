// Package budget decides which sick or silent nodes are given up, and when a decision is taken back. It
// promises that no more nodes with gangs on them are given up than the cluster and each failure domain can
// spare, that silence is taken for death only where neither the node's lease nor any agent there was heard,
// that a failure of its own hearing is taken for nothing, and that every decision has a way back. The same
// view gives the same plan, in whatever order the nodes come.
package budget
