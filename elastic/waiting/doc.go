// Package waiting determines why a gang stands still, from looks at its ranks. A look is a sample of one rank: its stack and its counters.
// The package computes which ranks wait for which other ranks, and what the roots do. A root is a rank that waits for no other rank. Only a
// root that showed no activity between two looks can be a culprit. A running rank without enough looks is never a culprit.
//
// For each process group of a rank, the rank's oldest incomplete operation counts. The rank waits for those members of the group that have
// not begun the operation. A rank is active if one of these changed between two looks: its stack, its counters of operations, its bytes of
// I/O, or the processor time of its process and the descendants. Processor time does not count if the rank's innermost frames wait for
// other ranks or for a device, because such frames use processor time while they wait. Elsewhere it does count: a frame that holds the
// interpreter's lock for ever, such as a regular expression that backtracks, looks the same as a long computation.
//
// A rank whose script has a phase open, the lease of which has not run out, counts as a root that is active, whatever its looks show.
//
// The innermost frame of a rank decides what the rank is in. A frame inside torch that has called the script's own code, such as a hook of
// the backward pass, does not count.
//
//	| verdict       | roots                                                                                    | named             |
//	|---------------|------------------------------------------------------------------------------------------|-------------------|
//	| Busy          | at least one is active                                                                   | none              |
//	| Stopped       | stopped by a signal or a debugger                                                        | the roots         |
//	| StorageStalls | wait in the kernel for a file system, on several nodes                                   | the roots         |
//	| Hang          | stand still inside torch, a driver or a device, or take no signal                        | the roots         |
//	| WaitsOutside  | stand still elsewhere: sleep, socket, pipe, file, child, lock, a data loader             | the roots         |
//	| EndedEarly    | ended with exit code 0, and others wait for them                                         | the roots         |
//	| Desync        | called different operations or numbers of elements under one number of a group          | none: a bug       |
//	| Deadlock      | none: ranks wait for each other over several groups                                      | none: a bug       |
//	| FabricHang    | none: all members have begun the operation, and it does not complete                     | see below         |
//	| Unexplained   | looks at ranks for which others wait are missing, or looks contradict each other         | none              |
//
// The first row that applies is the verdict. FabricHang names the ranks to which the first of these applies, if they are fewer than half
// of those in the operation and of the gang, and none otherwise. All but the third are what NCCL's RAS answered in the newest two looks.
//   - NCCL does not reach the rank's process.
//   - NCCL reports an error of the process, which is not that of another one.
//   - The operation has not started on the rank's device, by torch's recorder.
//   - The process has launched fewer operations of a communicator than most of its ranks.
package waiting
