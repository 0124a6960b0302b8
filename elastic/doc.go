// Package elastic decides about the generations of a gang: when one starts, from which step, when it is halted, and when the gang is given
// up.
//
// A generation's number only rises and is never used for two generations. An agent is ordered to run a generation only after its record is
// stored. A generation restores only a step that every rank holds; ranks that lack it in memory first fetch it from storage. Every failure
// leads to a new generation or to a verdict. Lost, doubled or late reports change nothing, because each report states the whole state of
// its sender.
//
// For pods that must be replaced: a pod is released only while it is pending, after all pods have halted and the Gang's status holds its
// replacement. Its state is copied to storage first if possible. Reports and copies of a fenced pod do not count. A termination that is
// withdrawn before that changes nothing.
//
// The package is a core: Step is a pure function of state, event and time.
package elastic
