// Package nodehealth turns signals of a node's GPUs and kernel into one verdict: Fold takes the signals, Assess
// returns the present verdict. The catalogue is a table with one row per cause: its action, the remedy, and the
// condition under which it ends. Every cause can end.
//
// The driver comes first: its recovery action for a GPU overrides the catalogue's action for an Xid. The package
// stands alone: no Kubernetes, no clock, no I/O.
package nodehealth
