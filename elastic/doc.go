// Package elastic decides the generations of a gang: when one starts, from which step, when it is
// halted, and when repairing has no use any more.
//
// It promises: a generation's number only rises and is never used for two generations; no agent is told
// to run a generation before the record of it is stored; a generation restores only a step that every
// rank holds, and storage is asked first where memory lacks it; every failure leads to a new generation or
// to a verdict; and reports that are lost, doubled or late change nothing, because each one states the whole
// truth of its sender.
//
// It promises of pods that must go: one is replaced only while it is to be replaced, after everything was halted and
// that is stored; what it holds is copied to storage first where that can be; nothing that a fenced pod says or
// copies counts; and a termination that is withdrawn before that leaves the pod where it is.
//
// The package is a core: Step is a pure function of state, event and time.
package elastic
