// Package members keeps which pods hold the slots of a gang, and the last report of each pod's agent. It promises: a report that is
// older than the one before it, or of a pod that does not hold its slot, changes nothing; a slot that is handed over keeps nothing of
// the earlier pod; and what is not reported stays unknown.
package members

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// Slot is the number of a pod's place in its gang, from 0.
type Slot int

// Pod names one incarnation of a slot's pod.
type Pod struct {
	UID     string
	Name    string
	Node    string
	Created time.Time
	// Restarted is how its container last ended, if known when its agent attached; Charged is what a restart of the whole container
	// costs the Job. Both are texts for users.
	Restarted, Charged string
}

// Newer reports whether the pod takes the slot over from old.
func (p Pod) Newer(old Pod) bool {
	if p.UID == old.UID {
		return false
	}
	if !p.Created.Equal(old.Created) {
		return p.Created.After(old.Created)
	}
	return p.UID > old.UID
}

// Members are the slots of a gang.
type Members struct {
	slots []Member
	// superseded are pods that a newer pod took the slot over from.
	superseded map[string]bool
	// launch is the number of the launcher that the gang is at; 0: the first. left are the slots whose pods take part in no further
	// generation of it, as is recorded.
	launch int
	left   []Slot
	seen   Seen
	// launched: a pod starts its ranks with a launcher, or all did in the newest generation, so that they may again.
	launched bool
	// mixedSince is when some pods were first seen to run their whole command while others have launchers; zero: they do not.
	mixedSince time.Time
	// numbered is how ranks would be numbered by what pods have reported, until one reports something else.
	numbered *numbering
}

// Recorded is what outlives a coordinator.
type Recorded struct {
	Seen
	Launch int
	Left   []Slot
}

// New returns n slots whose pods are not known yet, with what an earlier coordinator recorded of them; launched: pods started their
// ranks with launchers.
func New(n int, r Recorded, launched bool) *Members {
	r.Attached = nil
	return &Members{slots: make([]Member, n), superseded: map[string]bool{}, seen: r.Seen, launch: r.Launch, left: r.Left, launched: launched}
}

// Record is what is to be stored; it shares nothing with the members.
func (ms *Members) Record() Recorded {
	return Recorded{Seen: ms.Seen(), Launch: ms.launch, Left: slices.Clone(ms.left)}
}

// Len is the number of slots.
func (ms *Members) Len() int { return len(ms.slots) }

// Has reports whether the slot exists.
func (ms *Members) Has(slot Slot) bool { return slot >= 0 && int(slot) < len(ms.slots) }

// At returns what is known of a slot.
func (ms *Members) At(slot Slot) *Member { return &ms.slots[slot] }

// Each yields every slot with what is known of it.
func (ms *Members) Each(yield func(Slot, *Member) bool) {
	for i := range ms.slots {
		if !yield(Slot(i), &ms.slots[i]) {
			return
		}
	}
}

// All says whether something holds for every slot.
func (ms *Members) All(is func(*Member) bool) bool {
	for _, m := range ms.Each {
		if !is(m) {
			return false
		}
	}
	return true
}

// Admission says how a report is handled.
type Admission int

const (
	// Refused: its pod does not hold the slot, or is fenced.
	Refused Admission = iota
	// Stale: the same agent has sent a newer one.
	Stale
	// Admitted: it counts.
	Admitted
	// Succeeds: it counts, and its pod has taken the slot over from another one.
	Succeeds
)

// Admit decides whether a report counts, and hands the slot to a pod that takes it over. fenced reports whether the reports of a pod
// are ignored.
func (ms *Members) Admit(slot Slot, pod Pod, r *protocol.Report, fenced func(pod string) bool) Admission {
	m := &ms.slots[slot]
	switch holder := m.known && m.pod.UID == pod.UID; {
	case fenced(pod.UID), ms.superseded[pod.UID], m.known && !holder && !ms.TakesOver(pod, m.pod, fenced(m.pod.UID)):
		return Refused
	case holder && before(r, &m.report):
		return Stale
	case m.known && !holder:
		ms.HandOver(slot, Pod{})
		return Succeeds
	}
	return Admitted
}

// Take stores an admitted report and returns the previous one, and how many more saves it reports. generation is the newest.
func (ms *Members) Take(slot Slot, pod Pod, r *protocol.Report, generation int64, now time.Time) (was Member, more protocol.Saves) {
	m := &ms.slots[slot]
	was, ms.numbered = *m, nil
	more = m.countSaves(r, now)
	// An agent in a new container is idle until its launcher comes, which may be before its report arrives.
	another := m.report.Containers > 0 && r.Containers > m.report.Containers
	if m.known && Ran(m.report.State) && (another || r.State == protocol.StateIdle) {
		m.restartedIn = generation
	}
	m.known, m.attached, m.pod, m.report = true, true, pod, *r
	if r.Terminating && m.terminatingAt.IsZero() {
		m.terminatingAt = now
	}
	m.noteFailed(r.FetchFailed)
	return was, more
}

// NoteRan records that the pod of a slot has reported that it ran the newest generation.
func (ms *Members) NoteRan(slot Slot, generation int64) {
	if m := &ms.slots[slot]; m.report.Generation == generation && Ran(m.report.State) {
		m.ranIn = generation
	}
}

// TakesOver reports whether a pod takes over its slot from old. A pod that is replaced at once may have been created in the same
// second as its successor: then the fenced one is the old one. For pods in the API server membership.Holders decides.
func (ms *Members) TakesOver(p, old Pod, oldFenced bool) bool {
	return p.Newer(old) || p.UID != old.UID && oldFenced && p.Created.Equal(old.Created) && !ms.superseded[p.UID]
}

// HandOver gives a slot to another pod and forgets what was known of the one before.
func (ms *Members) HandOver(slot Slot, to Pod) {
	ms.superseded[ms.slots[slot].pod.UID] = true
	ms.slots[slot] = Member{pod: to}
	ms.numbered = nil
}

// Detach records that the agent of a pod is disconnected; its last report stays valid until the next.
func (ms *Members) Detach(slot Slot, pod string) bool {
	m := &ms.slots[slot]
	was := m.attached && m.pod.UID == pod
	m.attached = m.attached && !was
	return was
}

// Superseded reports whether a newer pod took the slot over from this one, AnySuperseded whether from any.
func (ms *Members) Superseded(pod string) bool { return ms.superseded[pod] }

// AnySuperseded reports whether a slot was taken over from a pod.
func (ms *Members) AnySuperseded() bool { return len(ms.superseded) > 0 }

// Holds reports whether no other pod is known to have taken the slot.
func (ms *Members) Holds(slot Slot, pod string) bool {
	return !ms.superseded[pod] && !ms.Orphan(slot, pod)
}

// Orphan reports whether another pod holds the slot.
func (ms *Members) Orphan(slot Slot, pod string) bool {
	m := &ms.slots[slot]
	return m.known && m.pod.UID != pod
}

// Launch is the number of the launcher that the gang is at.
func (ms *Members) Launch() int { return max(1, ms.launch) }

// BeginLaunch has the gang go on to another launcher, in which all take part.
func (ms *Members) BeginLaunch(number int) { ms.launch, ms.left = number, nil }

// AdoptLaunch takes over the launcher of a generation that goes on, where the store lost its record.
func (ms *Members) AdoptLaunch(number int) { ms.launch = number }

// Behind says whether a pod's command has yet to come to the gang's launcher.
func (ms *Members) Behind(slot Slot) bool { return max(1, ms.slots[slot].report.Launch) < ms.Launch() }

// NextLaunch is the newest launcher that a pod of which reports count has come to, and whether all have left the gang's.
func (ms *Members) NextLaunch(fenced func(pod string) bool) (next int, left bool) {
	next, left = ms.Launch(), true
	for slot, m := range ms.Each {
		if m.known && !fenced(m.pod.UID) && m.report.Ranks > 0 && m.report.Launch <= protocol.MaxLaunch {
			next = max(next, m.report.Launch)
		}
		left = left && ms.HasLeft(slot)
	}
	return next, left
}

// HasLeft says whether a slot's pod takes part in no further generation of the launcher: that has returned 0 there, because it had waited
// for the others as long as torchrun does, or a whole command has ended with 0, and its pod with it.
func (ms *Members) HasLeft(slot Slot) bool {
	m := &ms.slots[slot]
	return m.known && m.report.Returned >= ms.Launch() || slices.Contains(ms.left, slot)
}

// NoteLeft takes note of slots that left the launcher; it reports whether there are more: another coordinator would wait for a pod that is
// over.
func (ms *Members) NoteLeft() bool {
	left := []Slot(nil)
	for slot := range ms.Each {
		if ms.HasLeft(slot) {
			left = append(left, slot)
		}
	}
	if len(left) <= len(ms.left) {
		return false
	}
	ms.left = left
	return true
}

// Leave records that a slot's pod is over.
func (ms *Members) Leave(slot Slot) {
	if !slices.Contains(ms.left, slot) {
		ms.left = append(slices.Clone(ms.left), slot)
		slices.Sort(ms.left)
	}
}

// Rejoin has all take part in the launcher again.
func (ms *Members) Rejoin() { ms.left = nil }

// MaxRestarts is how many restarts the user allows: the lowest number if pods report different ones.
func (ms *Members) MaxRestarts() (most int, said bool) {
	for i := range ms.slots {
		m := &ms.slots[i]
		if n := m.report.MaxRestarts; m.known && n != nil && (!said || *n < most) {
			most, said = *n, true
		}
	}
	return most, said
}

// Containers counts the containers that each pod has had.
func (ms *Members) Containers() []uint64 {
	out := make([]uint64, len(ms.slots))
	for i := range ms.slots {
		out[i] = ms.slots[i].report.Containers
	}
	return out
}

// AtFault returns the slot of the pod at fault: the one that several others lost, else that of the rank that failed first.
func (ms *Members) AtFault(c cause.Cause) Slot {
	for slot, m := range ms.Each {
		if m.known && c.Accused != "" && m.report.Address == c.Accused {
			return slot
		}
	}
	return Slot(c.Slot)
}
