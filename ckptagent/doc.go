// Package ckptagent decides for the agent of one pod when it starts processes of a generation, when it ends them and
// proves them gone, what it reports, and when the user's launcher returns.
//
// It promises: processes of two generations never run at once; no generation is started twice, whatever dies in
// between; HALTED is reported only after every process of that generation and earlier ones is gone and the inventory
// of sealed steps is taken; a directive of a lower generation changes nothing; the launcher returns the coordinator's
// exit code, once; a step is fetched from storage only while no rank runs; ranks are held in their save only while
// the coordinator orders it and is reachable; a terminating pod continues to train until the coordinator halts it or
// its time is over.
//
// The package is a core: Step is a pure function of state, event and time. The durable part of the state may be
// stored as JSON after each Step and before its effects are carried out; a new incarnation of the agent continues
// from it with the event Resumed.
package ckptagent
