// Package checkpoint kills training processes of real agents at random moments, and between the seals of
// different ranks, and promises what users are told: a step that all ranks hold sealed is never lost, no
// torn state is ever restored, and no more than one save interval is computed again; and where steps are copied
// to storage, that a step with a manifest outlives the memory of all pods. Trainers and agents are also killed within each window of a save (make test-crash): the victim stands
// still, is seen to be in the window, and only then is killed; a window that is not hit as often as asked for fails the test. Storage that fails, is full or does not answer costs no save and no step that was durable. And the agent stays small: one static binary, little
// memory, no delay of the user's command.
package checkpoint
