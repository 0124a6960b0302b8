// Package members records which pods hold the slots of a gang, and the last report of each pod's agent. A report changes nothing if the
// agent has sent a newer one, or if its pod does not hold the slot. When another pod takes over a slot, everything that the earlier pod
// reported is dropped. State that no agent has reported counts as unknown.
package members

import (
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// Slot is a pod's place in its gang, from 0.
type Slot int

// Pod identifies one incarnation of a slot's pod.
type Pod struct {
	UID     string
	Name    string
	Node    string
	Created time.Time
	// Devices names the devices that it requests; "": none.
	Devices string
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
	// out has the slots that take no part (part.go); nil: all take part.
	out []bool
	// elastic: generations may go on without some slots, in whole blocks of so many (unit).
	elastic bool
	unit    int
	// superseded are pods whose slot a newer pod took over.
	superseded map[string]bool
	// launch is the number of the gang's launcher; 0: the first. left are the recorded slots, ascending, whose pods are no members of
	// further generations of it.
	launch int
	left   []Slot
	seen   Seen
	// launched: a pod starts its ranks with a launcher, or all did in the newest generation and may again.
	launched bool
	// mixedSince is when some pods were first seen to run their whole command while others have launchers; zero: they are not mixed.
	mixedSince time.Time
	// numbered caches the numbering of ranks until a report changes it.
	numbered *numbering
}

// Recorded is what outlives a coordinator.
type Recorded struct {
	Seen
	Launch int
	Left   []Slot
	// Out are the slots that take no part in the newest generation.
	Out []Slot
}

// New returns n slots with unknown pods and the record of an earlier coordinator; launched: pods started their ranks with launchers.
func New(n int, r Recorded, launched bool) *Members {
	r.Attached = nil
	ms := &Members{slots: make([]Member, n), superseded: map[string]bool{}, seen: r.Seen, launch: r.Launch, left: r.Left, launched: launched}
	ms.LeaveOut(r.Out)
	ms.elastic = len(r.Out) > 0
	return ms
}

// Record returns what must be stored, but Out, which the generation keeps; it shares nothing with the members.
func (ms *Members) Record() Recorded {
	return Recorded{Seen: ms.Seen(), Launch: ms.launch, Left: slices.Clone(ms.left)}
}

// Len returns the number of slots.
func (ms *Members) Len() int { return len(ms.slots) }

// Has reports whether the slot exists.
func (ms *Members) Has(slot Slot) bool { return slot >= 0 && int(slot) < len(ms.slots) }

// At returns the state of a slot.
func (ms *Members) At(slot Slot) *Member { return &ms.slots[slot] }

// All reports whether is holds for every slot that takes part.
func (ms *Members) All(is func(*Member) bool) bool {
	for _, m := range ms.Each {
		if !is(m) {
			return false
		}
	}
	return true
}

// Admission is how a report is handled.
type Admission int

const (
	// Refused: its pod does not hold the slot, or is fenced.
	Refused Admission = iota
	// Stale: the same agent has sent a newer one.
	Stale
	// Admitted: it counts.
	Admitted
	// Succeeds: it counts, and its pod has taken over the slot.
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
	// An agent in a new container is idle until its launcher connects, which may be before its report arrives.
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

// NoteRan records that the pod of a slot has reported that it ran the newest generation, which restored a step, and finished a step of it.
func (ms *Members) NoteRan(slot Slot, generation, restored int64) {
	m := &ms.slots[slot]
	if m.report.Generation == generation && Ran(m.report.State) {
		m.ranIn = generation
	}
	m.worked = m.worked || m.Stepped(generation, restored)
}

// TakesOver reports whether a pod takes over its slot from old. A pod that is replaced at once may have been created in the same second as
// its successor: then the fenced one is the old one. For pods in the API server membership.Holders decides.
func (ms *Members) TakesOver(p, old Pod, oldFenced bool) bool {
	return p.Newer(old) || p.UID != old.UID && oldFenced && p.Created.Equal(old.Created) && !ms.superseded[p.UID]
}

// HandOver gives a slot to another pod and drops the state of the previous one.
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

// Superseded reports whether a newer pod took over this pod's slot.
func (ms *Members) Superseded(pod string) bool { return ms.superseded[pod] }

// AnySuperseded reports whether a newer pod took over any slot.
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

// Launch returns the number of the gang's launcher.
func (ms *Members) Launch() int { return max(1, ms.launch) }

// BeginLaunch sets the gang's launcher; all pods are members again.
func (ms *Members) BeginLaunch(number int) {
	ms.launch, ms.left = number, nil
	for i := range ms.slots {
		ms.slots[i].worked = false
	}
}

// AdoptLaunch sets the launcher of a running generation whose record the store lost.
func (ms *Members) AdoptLaunch(number int) { ms.launch = number }

// Behind reports whether a pod's command has not reached the gang's launcher yet.
func (ms *Members) Behind(slot Slot) bool { return max(1, ms.slots[slot].report.Launch) < ms.Launch() }

// NextLaunch returns the newest launcher that a pod with valid reports has reached, and whether all have left the gang's.
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

// HasLeft reports whether a slot's pod is no member of further generations of the launcher: the launcher returned 0 there after it had
// waited for the others as long as torchrun does, or a whole command, and its pod with it, succeeded.
func (ms *Members) HasLeft(slot Slot) bool {
	m := &ms.slots[slot]
	_, left := slices.BinarySearch(ms.left, slot)
	return left || m.known && m.report.Returned >= ms.Launch()
}

// NoteLeft records slots that left the launcher. NoteLeft reports whether there are more: they must be stored, or another coordinator would
// wait for a pod that is over.
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

// Leave records that a slot's pod has left.
func (ms *Members) Leave(slot Slot) {
	if at, left := slices.BinarySearch(ms.left, slot); !left {
		ms.left = slices.Insert(slices.Clone(ms.left), at, slot)
	}
}

// Rejoin makes all pods members of the launcher again.
func (ms *Members) Rejoin() { ms.left = nil }

// MaxRestarts returns the user's limit of restarts: the lowest one if pods report different ones.
func (ms *Members) MaxRestarts() (most int, said bool) {
	for i := range ms.slots {
		m := &ms.slots[i]
		if n := m.report.MaxRestarts; m.known && n != nil && (!said || *n < most) {
			most, said = *n, true
		}
	}
	return most, said
}

// Containers returns the number of containers that each pod has had.
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
