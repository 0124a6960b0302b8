// Package waiting finds out, from looks at all ranks of a gang that stands still, who waits for whom, and for what the ranks are waited for
// that wait for nobody. No rank is a culprit unless it waits for nobody and nothing of it moved between looks; evidence that is missing
// excuses.
//
// A rank waits for the members of the process group of its oldest open operation that have not begun that operation. A root waits for
// nobody. Life is a stack, counters of operations or bytes of I/O that move between two looks, or processor time of the rank's process and
// its descendants; processor time is none in a frame that waits for other ranks or a device, because such frames spin.
//
//	| verdict       | roots                                                                                    | named             |
//	|---------------|------------------------------------------------------------------------------------------|-------------------|
//	| Busy          | one moves, or operations complete                                                        | nobody            |
//	| Stopped       | stopped by a signal or a debugger                                                        | these             |
//	| StorageStalls | wait in the kernel for a file system, on several nodes                                   | these             |
//	| Hang          | stand still inside torch, a driver or a device, or take no signal                        | these             |
//	| WaitsOutside  | stand still elsewhere: sleep, socket, pipe, file, child, lock, a data loader             | these             |
//	| EndedEarly    | ended with exit code 0, and others wait for them                                         | these             |
//	| Desync        | called another operation, or other sizes, at the same number of a group                  | nobody: a bug     |
//	| Deadlock      | none: ranks wait for each other over several groups                                      | nobody: a bug     |
//	| FabricHang    | none: all members have begun the operation, and it does not end                          | who did not start |
//	| Unknown       | looks of ranks that are waited for are missing, or looks contradict each other           | nobody            |
//
// The first row that applies is the verdict.
package waiting
