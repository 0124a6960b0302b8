package replacements

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/members"
)

const (
	// UnreachableTime is how long a running pod without reports may keep its gang from halting.
	UnreachableTime = 2 * time.Minute
	// PartitionTime is the same if several agents are unreachable and these are more than half of the gang. It is longer than a usual
	// interruption of the coordinator's network; after it, the state in these pods is worth less than the time of an idle gang.
	PartitionTime = 10 * time.Minute
	// LookupEvery is how often the coordinator queries which pods hold the unreachable slots; LookupStale without an answer makes
	// their state unknown.
	LookupEvery = 10 * time.Second
	LookupStale = 3 * LookupEvery
	// haltQuietly is how long halting may take before a note names the awaited pods.
	haltQuietly = 3 * time.Second
)

// unreachable is the state of a slot whose agent is unreachable while all ranks must halt.
type unreachable struct {
	// since is when its time began, for this holder; zero: the agent reports, or has halted.
	since time.Time
	// known: the API server's answer about the holder is recent; answered is when it last came.
	known    bool
	answered time.Time
	// holder is the pod that the API server has in the slot, runs whether its container was started.
	holder members.Pod
	runs   bool
}

// Watch tracks which pods keep a generation from halting, and gives up those that take too long.
type Watch struct {
	ms *members.Members
	rs *Replacements
	// generation is the halting one; detected is when its failure was seen.
	generation int64
	detected   time.Time
	// within is how long ranks may take to end because pods are terminating, or because they may save; 0: as their launchers set it.
	within time.Duration
	// silent has the state of each slot that must halt and is unreachable, stuck that of each that must halt and reports.
	silent []unreachable
	stuck  []stuck
	// stuckAt is when stuck was last updated.
	stuckAt time.Time
	// unreachable counts silent slots, and those given up as silent; partitionSuspected: they are several, and more than the others.
	// reachableSince is when that last ended.
	unreachable        int
	partitionSuspected bool
	reachableSince     time.Time
}

// NewWatch returns a Watch without state of any slot.
func NewWatch(ms *members.Members, rs *Replacements, generation int64, now time.Time) *Watch {
	return &Watch{
		ms: ms, rs: rs, generation: generation, detected: now, within: rs.HaltWithin(now),
		silent: make([]unreachable, ms.Len()), stuck: make([]stuck, ms.Len()),
	}
}

// Within returns how long ranks may take to end; 0: as their launchers set it.
func (w *Watch) Within() time.Duration { return w.within }

// Allow gives ranks more time to end.
func (w *Watch) Allow(within time.Duration) { w.within = max(w.within, within) }

// Forget drops the state of a slot after another pod took it.
func (w *Watch) Forget(slot members.Slot) { w.silent[slot], w.stuck[slot] = unreachable{}, stuck{} }

// Heard records a report of a slot's agent: between two updates of all slots its connection may end again.
func (w *Watch) Heard(slot members.Slot) { w.silent[slot] = unreachable{} }

// AllHalted reports whether every pod has halted, except those that are not awaited.
func (w *Watch) AllHalted(now time.Time) bool {
	for i := range w.ms.Len() {
		if w.Awaited(members.Slot(i), now) {
			return false
		}
	}
	return true
}

// Awaited reports whether the gang waits for the pod of a slot to halt. It does not if the pod takes no part, is fenced or has left, or if
// it must be replaced and its deadline has passed.
func (w *Watch) Awaited(slot members.Slot, now time.Time) bool {
	if !w.ms.Takes(slot) || w.ms.At(slot).Halted(w.generation) || w.ms.HasLeft(slot) {
		return false
	}
	d := w.rs.For(slot)
	return d == nil || !w.rs.Fenced(d.Pod) && !(now.After(w.rs.Deadline(*d)) && now.Sub(w.detected) > HaltTime)
}

// TrackUnreachable updates slots that must halt and whose agents are unreachable, and returns those whose holders must be queried. If
// several are unreachable, and these are more than half, the network may be at fault rather than the agents; given-up ones still count
// among them.
func (w *Watch) TrackUnreachable(now time.Time) (lookUp []members.Slot) {
	w.unreachable = 0
	for _, d := range w.rs.pending {
		if d.Cause == AgentUnreachable && w.ms.Takes(d.Slot) {
			w.unreachable++
		}
	}
	for i := range w.silent {
		slot, q := members.Slot(i), &w.silent[i]
		if w.ms.At(slot).Attached() || !w.Awaited(slot, now) {
			*q = unreachable{}
			continue
		}
		w.unreachable++
		if q.since.IsZero() {
			q.since = now
		}
		if q.known || now.Sub(q.since) >= haltQuietly {
			lookUp = append(lookUp, slot)
		}
	}
	partitioned := w.unreachable > 1 && 2*w.unreachable > w.ms.Parts()
	if w.partitionSuspected && !partitioned {
		w.reachableSince = now
	}
	w.partitionSuspected = partitioned
	return lookUp
}

// timeout returns how long a running pod that is unreachable since then may keep its gang from halting; 0: no longer. When most are
// reachable again each has UnreachableTime from then, within PartitionTime.
func (w *Watch) timeout(since, now time.Time) time.Duration {
	long, most := now.Sub(since), PartitionTime
	if !w.partitionSuspected {
		most = UnreachableTime + max(0, w.reachableSince.Sub(since))
	}
	return max(0, min(most, PartitionTime)-long)
}

// Silent reports whether a slot keeps the gang from halting and is unreachable.
func (w *Watch) Silent(slot members.Slot) bool {
	return w.ms.Has(slot) && !w.silent[slot].since.IsZero() && !w.ms.At(slot).Attached()
}

// Holder handles the API server's answer about a silent slot, and gives up a pod that runs and was unreachable for too long. Such a pod
// counts as dead: its reports and copies are ignored.
func (w *Watch) Holder(slot members.Slot, pod members.Pod, runs bool, now time.Time) (notes []Note) {
	q := &w.silent[slot]
	if q.holder.UID != pod.UID || q.runs != runs || now.Sub(q.answered) > LookupStale {
		q.since = now // only time with a steady answer of the API server counts
	}
	q.known, q.answered, q.holder, q.runs = true, now, pod, runs
	if !q.runs || w.timeout(q.since, now) > 0 || w.rs.Of(pod.UID) != nil || w.rs.Released(pod.UID) {
		return nil
	}
	long := now.Sub(q.since).Truncate(time.Minute)
	return []Note{w.giveUp(slot, pod, AgentUnreachable, fmt.Sprintf("its agent was unreachable for %s while generation %d was halting", long, w.generation), now)}
}

func (w *Watch) giveUp(slot members.Slot, pod members.Pod, cause, message string, now time.Time) Note {
	return w.rs.GiveUp(Termination{
		Slot: slot, Pod: pod.UID, Name: pod.Name, Node: pod.Node, Cause: cause, At: now, Deadline: now, Dead: true, Message: message,
	}, now)
}

// Waits returns a text on which pod keeps the gang from halting; "" during haltQuietly.
func (w *Watch) Waits(now time.Time) string {
	if now.Sub(w.detected) < haltQuietly {
		return ""
	}
	for i := range w.silent {
		slot, q := members.Slot(i), &w.silent[i]
		if w.Awaited(slot, now) {
			return w.waitsFor(slot, q)
		}
	}
	return ""
}

func (w *Watch) waitsFor(slot members.Slot, q *unreachable) string {
	switch {
	case q.since.IsZero():
		why := fmt.Sprintf("waits for pod %s of slot %d to end its processes of generation %d", w.ms.At(slot).Pod().Name, slot, w.generation)
		if k := w.stuck[slot]; k.reporting >= stuckTime/4 && w.rs.Of(k.pod) == nil {
			why += fmt.Sprintf("; if it does not within %s, the pod is replaced", w.mayHaltFor(slot, w.mostStuck()).Round(time.Second))
		}
		return why
	case q.known && q.holder.UID == "":
		return fmt.Sprintf("waits for a pod in slot %d, which has none", slot)
	case q.known && !q.runs:
		return fmt.Sprintf("waits for pod %s of slot %d to run", q.holder.Name, slot)
	case w.partitionSuspected:
		return fmt.Sprintf("%s: %d of %d agents are unreachable, the first in slot %d; this is more than half, so "+
			"check the network between them and the coordinator; pods that stay unreachable for %s are replaced",
			AgentUnreachable, w.unreachable, w.ms.Parts(), slot, PartitionTime)
	case q.known:
		return fmt.Sprintf("%s: the agent of pod %s in slot %d is unreachable; if it stays so for %s, the pod is replaced",
			AgentUnreachable, q.holder.Name, slot, UnreachableTime)
	default:
		return fmt.Sprintf("%s: the agent of slot %d is unreachable", AgentUnreachable, slot)
	}
}
