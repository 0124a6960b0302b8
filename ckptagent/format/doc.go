// Package format turns the bytes of an arena, in which one rank's state is kept in memory, into values
// and back. It promises that bytes which were not written whole read as not there, and that a Book
// (the agent's knowledge of one arena) names its writes in an order that keeps the newest commonly held
// step readable wherever the writer is cut. Prose, order rules and crash table:
// docs/formats/checkpoint.md. It does no I/O and reads no clock.
package format
