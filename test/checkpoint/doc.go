// Package checkpoint kills training processes of real agents at random moments, and between the seals of different
// ranks, and tests the documented promises: a step that all ranks hold sealed is never lost, no torn state is ever
// restored, and at most one save interval is computed again; where steps are copied to storage, a step with a
// manifest outlives the memory of all pods. Trainers and agents are also killed within each window of a save (make
// test-crash): the victim is stopped, found to be in the window, and only then killed; a window that is hit less often than requested fails
// the test. Failing, full or hanging storage costs no save and no durable step. The agent stays small: one static binary, little memory, no
// delay of the user's command.
package checkpoint
