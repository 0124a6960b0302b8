package yield

import (
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// Hold is room that is kept for one gang.
type Hold struct {
	// Priority is the gang's.
	Priority int32
	// Reserved: the room was not made for the gang, it waits for it; others may fill it in as long as they are out of
	// the way in time.
	Reserved bool
	// At is when a reservation is expected to be free; zero: nobody knows.
	At time.Time
	// Preempts: the gang may have units of lower priority leave.
	Preempts bool
}

// Binds says whether a newcomer must keep out of the room; end is when it will be over if it starts now, zero: nobody
// knows.
func (h Hold) Binds(priority int32, end time.Time) bool {
	switch {
	case priority > h.Priority:
		return false
	case !h.Reserved:
		return true
	case !h.At.IsZero() && !end.IsZero() && !end.After(h.At):
		return false
	}
	return !h.Preempts || priority == h.Priority
}

// Reservation is the room that a gang waits for.
type Reservation struct {
	Seats []gang.Seat
	// Domain is where they are, such as "rack a/r1"; empty: in no one domain.
	Domain string
	// At is when it is expected to be free; zero: nobody knows.
	At time.Time
	// Gone are the units that are over by then, by their index.
	Gone []int
}

// Reserve names the room that the gang gets first: that of the earliest time at which it fits once all who declared
// their end by then are over, and those who are leaving gone. If that is never, it is the room in which the fewest
// devices are taken by those who declared none. ok is false where the gang does not fit a cluster without any unit.
func Reserve(w World, g gang.Gang, now time.Time) (Reservation, bool) {
	if r, ok := earliest(w, g, now); ok {
		return r, true
	}
	open := World{Levels: w.Levels, Nodes: w.Nodes, Units: slices.Clone(w.Units)}
	for i := range open.Units {
		u := &open.Units[i]
		u.Leaving = u.Leaving || ends(u, now)
		u.Priority, u.Work, u.Budgets = 0, devices(u), nil
	}
	c, ok := Choose(open, g)
	r := Reservation{Seats: c.Seats, Domain: c.Domain, Gone: c.Victims}
	for i := range w.Units {
		if !w.Units[i].Leaving && open.Units[i].Leaving {
			r.Gone = append(r.Gone, i)
		}
	}
	return r, ok
}

// ends says whether a unit's end is known; one that is overdue is not to be believed any more.
func ends(u *Unit, now time.Time) bool { return u.End.After(now) }

func devices(u *Unit) int64 {
	n := int64(0)
	for i := range u.Pods {
		if u.Pods[i].Devices {
			n += 1 + deviceCount(u.Pods[i].What)
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

// earliest looks for the first declared end after which the gang fits. That it fits later as well lets it halve.
func earliest(w World, g gang.Gang, now time.Time) (Reservation, bool) {
	x := w.all(w.index())
	var times []time.Time
	for u := range w.Units {
		if !w.Units[u].Leaving {
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
			over := !w.Units[u].Leaving && ends(&w.Units[u], now) && !w.Units[u].End.After(at)
			if over && !gone[u] {
				x.take(u)
			} else if !over && gone[u] {
				x.put(u)
			}
			gone[u] = over
		}
		p, no := gang.Place(x.tree, g)
		return p, no == nil
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
	r := Reservation{Seats: seats(&g, p), At: times[low]}
	r.Domain = DomainOf(x.tree, r.Seats)
	for u, over := range gone {
		if over {
			r.Gone = append(r.Gone, u)
		}
	}
	return r, true
}
