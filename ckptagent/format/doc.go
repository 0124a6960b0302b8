// Package format encodes and decodes the bytes of an arena: the file in shared memory that holds the state of one rank.
// A record that was written only in part reads as absent. Book holds the agent's view of one arena. Book returns its
// writes in such an order that the newest common step stays readable if the agent dies between two writes.
// docs/formats/checkpoint.md has the layout, the rules of order and a table of crashes. The package does no I/O and
// reads no clock.
package format
