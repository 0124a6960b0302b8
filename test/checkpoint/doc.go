// Package checkpoint kills training processes of real agents at random moments and between the seals of different
// ranks. The tests check what the documentation promises:
//
//   - A step that all ranks hold sealed is never lost, no torn state is restored, and at most one save interval is
//     computed again.
//   - A step that has a manifest in storage survives the memory of all pods.
//   - Storage that fails, is full or blocks costs no save and no durable step.
//   - The agent stays small: one static binary, little memory, and no delay of the user's command.
//
// `make test-crash` kills trainers and agents within each window of a save. The test stops the victim, finds that it is
// in the window, and only then kills it. The test fails if a window is hit less often than requested.
package checkpoint
