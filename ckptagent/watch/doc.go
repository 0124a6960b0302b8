//go:build linux

// Package watch looks at ranks that stand still, without a word of theirs: at torch's record of their collectives, at the Python stack of
// their main threads, and at what their processes use. It promises that a look ends within Limit whatever a rank does, changes nothing in a
// rank but the file that its stack is written to, and sends a signal only to a process that handles it.
//
// What torch's recorder has, and what follows:
//
//   - It answers from C++ threads, so also while a rank holds the interpreter's lock. Each backend has a record of its own, with numbers of
//     its own: a group is named BACKEND:NAME here.
//   - gloo's record lacks members of groups (its pg_config has one entry, without a name), and send and recv. Members come from the file
//     that the site hook writes.
//   - pg_status counts send and recv among collectives, so its numbers differ between ranks. Those of the entries do not. A completed entry
//     of gloo is "retired" and stays "scheduled"; a retired entry of NCCL's own record has timed out if it is not "completed".
//   - The record of nccl2 has only entries that are not completed, and its pg_status counts by op_id: where no entry of a group tells of
//     send and recv, op_id is the number.
//   - The answer takes up to 40 ms of processor time of the rank, and the stack some KiB of its I/O. What the rank uses during a look is
//     therefore left out of what looks report as used: a rank that stands still between two looks has used nothing.
package watch
