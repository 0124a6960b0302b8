// Package format encodes and decodes the bytes of an arena, which holds one rank's state in memory. Partly written records read as absent.
// A Book (the agent's view of one arena) returns its writes in an order that keeps the newest common step readable at whatever point the
// writer stops. Prose, order rules and crash table: docs/formats/checkpoint.md. It does no I/O and reads no clock.
package format
