// Package cause finds, among the exits of all ranks of a gang, the one that failed first.
//
// A rank that dies makes the others fail: their collectives break within milliseconds, on nodes whose clocks differ. So the result rests on
// each rank's own error. Times only break ties, and a SIGKILL that was recorded soon after other exits counts as earlier. The result is the
// same for the same exits in any order. A rank that ended because of another one is named only if there is no better candidate.
package cause
