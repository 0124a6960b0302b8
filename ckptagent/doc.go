// Package ckptagent decides for the agent of one pod: when it starts the processes of a generation, when it ends them,
// what it reports, and when the user's launcher returns.
//
//   - Processes of two generations never run at the same time.
//   - No generation is started twice in a pod, whichever process dies.
//   - The agent reports StateHalted only when no process of that generation, or of an earlier one, is left, and the
//     sealed steps are listed.
//   - A directive for a lower generation changes nothing.
//   - The launcher returns the exit code that the coordinator ordered.
//   - A step is fetched from storage only while no rank runs.
//   - Ranks wait in their save at the barrier step only while the coordinator orders it and is reachable.
//   - A terminating pod goes on training until the coordinator halts it or its grace period is over.
//
// The package is a core: Step is a pure function of state, event and time. The caller may store the durable part of the
// state as JSON after each Step, before it carries out the effects. A restarted agent continues from that JSON with the
// event Resumed.
package ckptagent
