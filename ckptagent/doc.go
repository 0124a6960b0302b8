// Package ckptagent decides what the agent of one pod does: when it starts, ends and proves gone the
// processes of a generation, what it reports, when the user's launcher returns.
//
// It promises: processes of two generations never run at once; no generation is started twice, whatever
// dies in between; HALTED is said only when every process of that generation and below is gone and the
// inventory of sealed steps is taken; a directive of a lower generation changes nothing; the launcher
// returns the coordinator's exit code, once; a step is fetched from storage only while nothing runs; ranks are held
// in their save only while the coordinator wants it and is there; a terminating pod trains on until the
// coordinator halts it or its time is over.
//
// The package is a core: Step is a pure function of state, event and time. What is durable of the state may be stored as JSON
// after each Step and before its effects are carried out; a new incarnation of the agent goes on from it
// with the event Resumed.
package ckptagent
