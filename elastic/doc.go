// Package elastic decides the generations of a gang: when one starts, from which step, when it is
// halted, and when the gang is given up.
//
// It promises: a generation's number only rises and is never used for two generations; an agent is ordered to run
// a generation only after its record is stored; a generation restores only a step that every rank holds, and ranks
// that lack it in memory first fetch it from storage; every failure leads to a new generation or to a verdict; and
// lost, doubled or late reports change nothing, because each one states the whole state of its sender.
//
// It promises of pods that must be replaced: a pod is released only while it is pending, after all pods have halted and the Gang's
// status stores the replacement; its state is copied to storage first if possible; reports and copies of a fenced pod do not count;
// and a termination that is withdrawn earlier changes nothing.
//
// The package is a core: Step is a pure function of state, event and time.
package elastic
