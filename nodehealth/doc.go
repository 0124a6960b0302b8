// Package nodehealth turns signals of a node's GPUs and kernel into one verdict: Fold takes the signals, Assess
// returns the present verdict. The catalogue is a table with one row per cause: its action, the remedy, and the
// condition under which it ends. Every cause can end.
//
// The driver's recovery action for a GPU overrides the catalogue's action for an Xid. The package uses no Kubernetes, no clock and no I/O.
package nodehealth
