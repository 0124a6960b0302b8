// Package elastic decides about the generations of a gang: when one starts and from which step, when it is halted, and
// when the gang is given up.
//
//   - The number of a generation only rises, and no two generations have the same number.
//   - Agents are ordered to run a generation only after its record is stored.
//   - A generation restores only a step that every rank holds. Ranks that lack the step in memory first fetch it from
//     storage.
//   - Every failure leads to another generation or to a verdict.
//   - Each report states the whole state of its sender, so that a lost, doubled or late report changes nothing.
//
// These rules hold for a pod that must be replaced:
//
//   - The pod is released after all pods have halted and the Gang's status holds its replacement. A pod whose slot
//     another pod holds is released without a halt; so is any pod before the first generation.
//   - The state of the pod is copied to storage before the release, if possible.
//   - Reports and copies of a fenced pod do not count.
//   - If the termination is withdrawn before the replacement is committed, the pod stays.
//
// These rules hold for a gang with a minimum (sizes.go):
//
//   - A generation has at least that many pods, and nothing waits for the slots that take no part in it.
//   - It restores no older step than one that all ranks held, while a pod that lives holds that.
//   - Taking pods in again does no step again.
//
// Small gangs act after each report, large ones at times that leave the cost of a report independent of the number of
// pods (walk.go).
//
// The package is a core: Step is a pure function of state, event and time.
package elastic
