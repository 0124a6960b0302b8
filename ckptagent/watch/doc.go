//go:build linux

// Package watch looks at ranks that stand still. The training script does not take part. A look at a rank consists of torch's record of its
// collectives, the Python stack of its main thread, and the processor time and I/O of its processes. The look at global rank 0 of a gang
// that uses NCCL also has what NCCL's RAS answers (package ras). Every look ends within Limit. A look changes nothing in a rank except the
// file to which the rank writes its stack. The package sends a signal only to a process that handles the signal.
// The package depends on these properties of torch's recorder:
//   - The recorder answers from C++ threads, so it also answers while the rank holds the interpreter's lock.
//   - Each backend has its own record with its own sequence numbers. Therefore the package names a group BACKEND:NAME.
//   - gloo's record contains no members of groups (its pg_config has one entry, without a name), and no send and recv. The package reads
//     the members from the file that the site hook writes.
//   - pg_status counts send and recv as collectives, so its sequence numbers differ between ranks. The sequence numbers in the entries are
//     equal on all ranks.
//   - A completed entry of gloo has state "scheduled" and is "retired". In NCCL's record, a retired entry that is not "completed" has timed
//     out.
//   - The record of nccl2 contains only entries that are not completed, and its pg_status counts by op_id. If no entry of a group is a send
//     or recv, op_id is the sequence number.
//   - The answer uses up to 40 ms of the rank's processor time, and the stack some KiB of its I/O. Reports exclude what a look itself uses,
//     so a rank that stands still between two looks has used nothing.
//
// The I/O of a process (/proc/PID/io) lacks what it receives and sends by recv and send. So a look adds the bytes of the TCP connections
// that the rank's processes hold, as the kernel's sock_diag has them. Traffic that also moves in a hang does not count: that of the ranks'
// store, and keep-alive messages (flows). Bytes that cannot be read are 0.
package watch
