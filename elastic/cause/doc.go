// Package cause finds, among the exits of all ranks of a gang, the one that failed first.
//
// A rank that dies makes the others fail: their collectives break within milliseconds, on nodes whose clocks differ.
// So the answer rests on each rank's own error; times break ties only, and a SIGKILL that was recorded soon after
// other exits came before them. The package promises the same answer for the same exits in any order, and that a rank
// that ended because of another one is named only if there is no better candidate.
package cause
