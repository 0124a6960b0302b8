// Package nodehealth turns what a node's GPUs and kernel say into one verdict: what was seen goes into
// Fold as signals, Assess says what it means now. The catalogue is a table: one row per cause, with the
// action, what to do about it and how it goes away again. Every cause has a way back.
//
// The driver comes first: where it says which recovery a GPU needs, that overrides what the catalogue
// thinks of an Xid. The package stands alone: no Kubernetes, no clock, no I/O.
package nodehealth
