package preemption

import (
	"math"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// Holding is room that the scheduler keeps for one gang: a nomination after preemption, or a reservation.
type Holding struct {
	// Priority is the gang's.
	Priority int32
	// Reserved: the gang waits for the room without preemption; other jobs may backfill it if they end in time.
	Reserved bool
	// At is when a reservation is expected to be free; zero: unknown.
	At time.Time
	// Preempts: the gang may preempt units of lower priority.
	Preempts bool
}

// Lowest is the priority of a newcomer that must stay out of all held room in which it does not end in time, also out of room from which it
// could be preempted: surplus of a gang.
const Lowest = math.MinInt32

// Excludes reports whether a newcomer must stay out of the room. end is when the newcomer will end if it starts now; zero: unknown.
func (h Holding) Excludes(priority int32, end time.Time) bool {
	switch {
	case priority > h.Priority:
		return false
	case !h.Reserved:
		return true
	case !h.At.IsZero() && !end.IsZero() && !end.After(h.At):
		return false
	}
	return !h.Preempts || priority == h.Priority || priority == Lowest
}

// Reservation is the room that a gang waits for.
type Reservation struct {
	Assignments []gang.Assignment
	// Domain is the narrowest one that holds all assignments, such as "rack a/r1"; empty: none.
	Domain string
	// At is when the room should be free; zero: unknown.
	At time.Time
	// Ended are the units that will have ended by then, by index.
	Ended []int
}

// Reserve returns the room that the gang can have first: where it fits at the earliest time, after all units with a declared end by
// then have ended and terminating ones are gone. If there is no such time, it is the room in which units without a declared end use
// the fewest devices. It is for what the gang needs, not for its surplus. ok is false if the gang does not fit even into an empty cluster,
// or needs nothing.
func Reserve(w World, g gang.Gang, now time.Time) (Reservation, bool) {
	g, needs := g.Minimum()
	if !needs {
		return Reservation{}, false
	}
	if r, ok := earliest(w, g, now); ok {
		return r, true
	}
	open := World{Levels: w.Levels, Nodes: w.Nodes, Units: slices.Clone(w.Units)}
	for i := range open.Units {
		u := &open.Units[i]
		u.Terminating = u.Terminating || ends(u, now)
		u.Priority, u.LostWork, u.Budgets = 0, devices(u), nil
	}
	c, ok := SelectVictims(open, g)
	r := Reservation{Assignments: c.Assignments, Domain: c.Domain, Ended: c.Victims}
	for i := range w.Units {
		if !w.Units[i].Terminating && open.Units[i].Terminating {
			r.Ended = append(r.Ended, i)
		}
	}
	return r, ok
}

// ends reports whether a unit's end is known; an overdue unit's declared end does not count.
func ends(u *Unit, now time.Time) bool { return u.End.After(now) }

func devices(u *Unit) int64 {
	n := int64(0)
	for i := range u.Pods {
		if u.Pods[i].Devices {
			n += 1 + deviceCount(u.Pods[i].Resources)
		} else {
			n++
		}
	}
	return n
}

func deviceCount(r topology.Resources) int64 {
	n := int64(0)
	for name, v := range r {
		if strings.Contains(name, "/") {
			n += v
		}
	}
	return n
}

// earliest finds the first declared end after which the gang fits, by bisection: if it fits at one time, it fits later.
func earliest(w World, g gang.Gang, now time.Time) (Reservation, bool) {
	x := w.all(w.index())
	var times []time.Time
	for u := range w.Units {
		if !w.Units[u].Terminating {
			x.put(u)
		}
		if ends(&w.Units[u], now) {
			times = append(times, w.Units[u].End)
		}
	}
	times = slices.CompactFunc(slices.SortedFunc(slices.Values(append(times, now)), time.Time.Compare), time.Time.Equal)
	gone := make([]bool, len(w.Units))
	fits := func(at time.Time) (gang.Placement, bool) {
		for u := range w.Units {
			over := !w.Units[u].Terminating && ends(&w.Units[u], now) && !w.Units[u].End.After(at)
			if over && !gone[u] {
				x.take(u)
			} else if !over && gone[u] {
				x.put(u)
			}
			gone[u] = over
		}
		p, refusal := gang.Place(x.tree, g)
		return p, refusal == nil
	}
	low, high := 0, len(times)
	for low < high {
		mid := (low + high) / 2
		if _, ok := fits(times[mid]); ok {
			high = mid
		} else {
			low = mid + 1
		}
	}
	if low == len(times) {
		return Reservation{}, false
	}
	p, _ := fits(times[low])
	r := Reservation{Assignments: assignments(&g, p), At: times[low]}
	r.Domain = DomainOf(x.tree, r.Assignments)
	for u, over := range gone {
		if over {
			r.Ended = append(r.Ended, u)
		}
	}
	return r, true
}
