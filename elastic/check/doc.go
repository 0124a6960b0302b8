// Package check decides about the node check of a gang: which pods are tried alone and in pairs, and which pod is at fault.
//
// The rounds are: each pod alone; neighbours in placement order; a pod without a neighbour, with another one; each pod
// that has not passed, with a pod that has (two rounds, as one pod may be the partner of two in turn); and, for a pod
// against which only one passed partner speaks, one more partner. The trials of a round depend only on the results of
// earlier rounds. So Judge computes the present round and the verdict from the answers alone, and a coordinator or an
// agent that restarts does not change the verdict.
//
//   - A pod is guilty in pairs only if no trial of it passed, and trials with two pods failed that passed elsewhere.
//   - Two pods that failed together and each passed elsewhere are not at fault: the path between them is noted.
//   - Only pods of one kind are paired: they request the same devices, or request none and their torch uses the same backend.
//     Each kind is judged as a gang of its own. A pod whose torch sees no device, while that of another pod with the same
//     requests does, has failed alone.
//   - A trial without the answers of both pods is repeated. It speaks against no pod.
//   - A trial whose imports do not end is repeated once, with more time for them. A pod that is late again is reported and
//     not named, because that speaks for slow storage.
//   - Wrong results are proof by themselves: as many pods as a check replaces are named for them, unless no pod computes right.
//   - If, without these, more than a quarter of the pods (at least one) are guilty, or more pods have not passed than twice the pods
//     that have, the fault is systemic and no pod is named.
//   - Of two pods that failed only together one is named as the first to replace.
//
// The package is a core: Judge is a pure function.
package check
