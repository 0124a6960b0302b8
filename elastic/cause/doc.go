// Package cause finds, among the exits of all ranks of a gang, the exit that came first.
//
// A rank that dies makes the other ranks fail within milliseconds, because their collectives break. Clocks of nodes
// differ by more than that. So First compares the kind of each error before it compares times. A SIGKILL that was
// recorded soon after other exits counts as earlier than these. A rank that ended because another rank had ended is
// named only if there is no better candidate. The order in which exits are listed does not change the result.
package cause
