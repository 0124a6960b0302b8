// Package ras asks NCCL which ranks do not work. Each process that uses NCCL from 2.24 on runs a RAS thread, unless NCCL_RAS_ENABLE=0. The
// threads exchange keep-alive messages over TCP, beside the collectives, and any of them answers for the whole job. It listens on
// localhost:28028, or on NCCL_RAS_ADDR. Its answers are text up to 2.28.6, and JSON from 2.28.7 on, which this package reads.
//
// What the package depends on is in NVIDIA/nccl, commit 12df1a11 (src/ras/client_support.cc, src/ras/ras_internal.h), and in the texts of
// the libraries of nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7:
//   - The commands are lines: "CLIENT PROTOCOL 2", answered by "SERVER PROTOCOL 2", "TIMEOUT SECONDS" and "SET FORMAT json", answered by
//     "OK" or "ERROR: ...", and "VERBOSE STATUS", answered by one object, after which the server closes the connection. 2.28 accepts only
//     whole seconds.
//   - The object has "communicators"; each has "size", "ranks" and "missing_ranks". Each of these has "rank" (in the communicator), "host"
//     and "pid" ("unknown" and -1: its process is unknown).
//   - One of "ranks" has "status" with "init_state" and "async_error", both of type ncclResult_t, and "collective_counts" with Broadcast,
//     Reduce, AllGather, ReduceScatter and AllReduce: how many the process has launched. They are equal on all ranks of a communicator,
//     also while a device stands still in one.
//   - One of "missing_ranks" has "status" with "unresponsive" (no answer of its process arrived) and "considered_dead" (its process could
//     not be reached for 60 s). If both are false, its process answered and is not in the communicator.
//   - 2.28.9 writes no comma between "nvml_dev" and "status" of "missing_ranks". Therefore this package has its own reader, for which commas
//     and colons are blanks.
//   - The RAS thread enlarges its buffer for the answer by 4 KiB at a time and copies it each time, so its work grows with the square of the
//     answer. Therefore gangs of more than MostRanks are not asked.
//
// Ranks of a communicator become global ranks by a communicator of all ranks: torch's default group has one once a collective has used it.
// Without it the answer says nothing. What the port's listener is, is not known: it may be any process of the pod. So what is read is
// bounded, and an answer that is not consistent, or whose rank 0 is another process (its pid, and its host, which is one address of this
// pod), is discarded as a whole. Pods on their node's network share the port and addresses, and pids of several pods are equal, so there
// RAS is not asked.
//
// The package was not run against NCCL itself; its tests replay answers that were composed by the source.
package ras
