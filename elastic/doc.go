// Package elastic decides the generations of a gang: when one starts, from which step, when it is
// halted, and when repairing has no use any more.
//
// It promises: a generation's number only rises and is never used for two generations; no agent is told
// to run a generation before the record of it is stored; a generation restores only a step that every
// rank holds; every failure leads to a new generation or to a verdict; and reports that are lost,
// doubled or late change nothing, because each one states the whole truth of its sender.
//
// The package is a core: Step is a pure function of state, event and time.
package elastic
