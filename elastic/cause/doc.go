// Package cause finds, among the exits of all ranks of a gang, the one that failed first.
//
// A rank that dies takes the others with it: their collectives break and they fail too, within
// milliseconds, on nodes whose clocks differ. So the answer rests on what each rank said before it
// ended; times break ties only, and a SIGKILL that was seen soon after came before. The package promises
// the same answer for the same exits in any order, and that a rank that ended because of another one is
// named only where nothing better is known.
package cause
