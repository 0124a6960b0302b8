package replacements

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
)

// Note is a line for users about a termination.
type Note struct {
	Warning bool
	Message string
}

// about returns a note on a termination.
func about(d Termination, warning bool, what string) Note {
	return Note{warning, fmt.Sprintf("%s of slot %d %s", d.Where(), d.Slot, what)}
}

// SetPending sets the level of pods to be replaced. SetPending returns notes for users, and whether the lists have changed.
func (rs *Replacements) SetPending(pods []Termination, now time.Time) (notes []Note, changed bool) {
	next := []Termination{}
	level, before := listed(pods), listed(rs.pending)
	for _, d := range rs.pending {
		if rs.irrevocable(d) && level[d.Pod] == nil {
			next = append(next, d)
		}
	}
	for _, d := range pods {
		if !rs.mayTerminate(d) {
			continue
		}
		d.Message = cause.Tail(d.Message, keptMessage)
		switch old := before[d.Pod]; {
		case old == nil:
			notes = append(notes, announce(&d, now))
		case old.GivenUp():
			d = *old // a given-up pod stays so, whatever its node's state is
		default:
			d.At, d.Deadline = old.At, old.Deadline // its first times stay valid
		}
		next = append(next, d)
	}
	stays := listed(next)
	notes = append(notes, rs.withdrawn(func(d Termination) bool { return stays[d.Pod] != nil })...)
	return notes, rs.recordLists(next, nil)
}

// mayTerminate reports whether the listed pod has not been replaced yet.
func (rs *Replacements) mayTerminate(d Termination) bool {
	return rs.ms.Has(d.Slot) && !rs.Released(d.Pod) && (!rs.ms.Superseded(d.Pod) || rs.Of(d.Pod) != nil)
}

// recordLists sets which pods must be replaced, and which terminate because their Job is suspended.
func (rs *Replacements) recordLists(pending, suspended []Termination) (changed bool) {
	bySlot(pending)
	bySlot(suspended)
	if slices.Equal(pending, rs.pending) && slices.Equal(suspended, rs.suspended) {
		return false
	}
	rs.set(pending, suspended)
	for _, d := range rs.All() {
		if d.Dead {
			rs.ms.Detach(d.Slot, d.Pod)
		}
	}
	return true
}

// GiveUp requests the replacement of a pod that the coordinator itself gives up.
func (rs *Replacements) GiveUp(d Termination, now time.Time) Note {
	note := announce(&d, now)
	pending := append(slices.Clone(rs.pending), d)
	bySlot(pending)
	rs.set(pending, rs.suspended)
	return note
}

// set sets the lists, by slot.
func (rs *Replacements) set(pending, suspended []Termination) {
	rs.pending, rs.suspended, rs.byPod = pending, suspended, nil
}

// announce sets the times of a new termination and returns the note on it.
func announce(d *Termination, now time.Time) Note {
	if d.At.IsZero() {
		d.At = now
	}
	if d.Deadline.IsZero() {
		d.Deadline = now.Add(terminationTime) // the rules stand in deadline.go
	}
	return about(*d, true, "must be replaced: "+d.Why())
}

// withdrawn returns a note on each termination that is withdrawn.
func (rs *Replacements) withdrawn(leaves func(Termination) bool) (notes []Note) {
	for _, d := range rs.pending {
		if !leaves(d) {
			notes = append(notes, about(d, false, fmt.Sprintf("no longer needs a replacement: %s is over", d.Cause)))
		}
	}
	return notes
}

// irrevocable reports whether a termination can no longer be withdrawn: it was carried out, the pod is being deleted, or the coordinator
// itself gave the pod up.
func (rs *Replacements) irrevocable(d Termination) bool {
	m := rs.ms.At(d.Slot)
	leaves := m.Known() && m.Is(d.Pod) && m.Report().Terminating
	return rs.stage(d.Pod) >= committed || d.Cause == PodDeleted || d.OwnVerdict() || leaves
}

// None reports whether no pod must terminate.
func (rs *Replacements) None() bool { return len(rs.pending)+len(rs.suspended) == 0 }

// All returns all pods that must terminate, by slot.
func (rs *Replacements) All() []Termination { return Merge(rs.pending, rs.suspended) }

// Of returns why a pod must terminate; nil: it need not.
func (rs *Replacements) Of(pod string) *Termination {
	if rs.None() {
		return nil // the usual case; it is called for each slot
	}
	if rs.byPod == nil {
		rs.byPod = listed(rs.suspended, rs.pending)
	}
	return rs.byPod[pod]
}

// listed returns the entries of lists by pod; those of a later list count.
func listed(lists ...[]Termination) map[string]*Termination {
	all := map[string]*Termination{}
	for _, list := range lists {
		for i := range slices.Backward(list) { // the first of a pod counts
			all[list[i].Pod] = &list[i]
		}
	}
	return all
}

// For returns why the pod that holds a slot must terminate; nil: it need not.
func (rs *Replacements) For(slot members.Slot) *Termination {
	if rs.None() {
		return nil
	}
	return cmp.Or(rs.inSlot(rs.pending, slot), rs.inSlot(rs.suspended, slot))
}

// inSlot returns the termination of the pod that holds a slot.
func (rs *Replacements) inSlot(list []Termination, slot members.Slot) *Termination {
	at, _ := slices.BinarySearchFunc(list, slot, func(d Termination, slot members.Slot) int { return cmp.Compare(d.Slot, slot) })
	for i := at; i < len(list) && list[i].Slot == slot; i++ {
		if d := &list[i]; !rs.ms.Orphan(d.Slot, d.Pod) {
			return d
		}
	}
	return nil
}

// Uncommitted returns the pods that take part, must terminate, and whose replacement is not committed yet.
func (rs *Replacements) Uncommitted() []Termination { return rs.atPending(rs.All()) }

// ToReplace returns those of them that get a replacement.
func (rs *Replacements) ToReplace() []Termination { return rs.atPending(rs.pending) }

func (rs *Replacements) atPending(terminations []Termination) []Termination {
	out := []Termination{}
	for _, d := range terminations {
		if rs.stage(d.Pod) == pending && rs.ms.Takes(d.Slot) {
			out = append(out, d)
		}
	}
	return out
}

// Names returns the uncommitted pods as text for users.
func (rs *Replacements) Names() string {
	var names []string
	for _, d := range rs.Uncommitted() {
		names = append(names, "pod "+d.Name)
	}
	return strings.Join(names, ", ")
}

// AnyFenced reports whether some pod to be replaced is fenced.
func (rs *Replacements) AnyFenced() bool {
	return slices.ContainsFunc(rs.All(), func(d Termination) bool { return rs.Fenced(d.Pod) })
}

// AnyUnknown reports whether the agent of a pod to be replaced has not attached yet, and may.
func (rs *Replacements) AnyUnknown() bool {
	return slices.ContainsFunc(rs.Uncommitted(), func(d Termination) bool { return !d.Dead && !rs.ms.At(d.Slot).Known() })
}

// Record returns the lists to be stored; they share nothing with the Replacements.
func (rs *Replacements) Record() (pending, suspended []Termination) {
	return slices.Clone(rs.pending), slices.Clone(rs.suspended)
}
