// Package ckptagent decides for the agent of one pod when it starts processes of a generation, when it ends them and
// proves them gone, what it reports, and when the user's launcher returns.
//
// Processes of two generations never run at once. No generation is started twice, whatever process dies in between. HALTED is reported only
// after every process of that generation and of earlier ones is gone and the inventory of sealed steps is complete. A directive of a lower
// generation changes nothing. The launcher returns the coordinator's exit code, once. A step is fetched from storage only while no rank
// runs. Ranks are held in their save only while the coordinator orders it and is reachable. A terminating pod trains on until the
// coordinator halts it or its grace period is over.
//
// The package is a core: Step is a pure function of state, event and time. The durable part of the state may be stored as JSON after each
// Step and before its effects are carried out; a new incarnation of the agent continues from it with the event Resumed.
package ckptagent
