package yield

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/gang"
)

func TestHoldBinds(t *testing.T) {
	at := start.Add(time.Hour)
	soon, late := start.Add(time.Minute), start.Add(2*time.Hour)
	for name, c := range map[string]struct {
		hold     Hold
		priority int32
		end      time.Time
		want     bool
	}{
		"a claim binds its equals":                       {Hold{Priority: 5}, 5, soon, true},
		"a claim binds those below":                      {Hold{Priority: 5, Preempts: true}, 4, soon, true},
		"a claim does not bind those above":              {Hold{Priority: 5}, 6, late, false},
		"who ends in time may fill in":                   {Hold{Priority: 5, Reserved: true, At: at}, 5, soon, false},
		"to the second":                                  {Hold{Priority: 5, Reserved: true, At: at}, 5, at, false},
		"who ends later may not":                         {Hold{Priority: 5, Reserved: true, At: at}, 5, late, true},
		"who says nothing may not":                       {Hold{Priority: 5, Reserved: true, At: at}, 5, time.Time{}, true},
		"nor where nobody knows when it is free":         {Hold{Priority: 5, Reserved: true}, 5, soon, true},
		"who can be told to leave may":                   {Hold{Priority: 5, Reserved: true, Preempts: true}, 4, late, false},
		"not where the gang has nobody leave":            {Hold{Priority: 5, Reserved: true}, 4, late, true},
		"who is above goes first, in a reservation, too": {Hold{Priority: 5, Reserved: true}, 6, late, false},
	} {
		if got := c.hold.Binds(c.priority, c.end); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestReserve(t *testing.T) {
	in := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	until := func(u Unit, end time.Time) Unit { u.End = end; return u }
	for name, c := range map[string]struct {
		units  []Unit
		g      gang.Gang
		domain string
		at     time.Time
		no     bool
	}{
		"the first rack to be free": {units: []Unit{until(unit("a", 0, 0, 4, "n0"), in(30)), until(unit("b", 0, 0, 4, "n1"), in(10)), until(unit("c", 0, 0, 4, "n2", "n3"), in(20))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(20)},
		"one who says nothing is not waited for": {units: []Unit{unit("a", 0, 0, 4, "n0"), until(unit("b", 0, 0, 4, "n1"), in(10)), until(unit("c", 0, 0, 4, "n2", "n3"), in(20))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(20)},
		"nobody says anything: where least is in the way": {units: []Unit{unit("a", 7, 0, 4, "n0", "n1"), unit("b", 9, 0, 1, "n2"), unit("c", 9, 0, 1, "n3")},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1"},
		"overdue is as good as nothing said": {units: []Unit{until(unit("a", 0, 0, 4, "n0", "n1"), in(-1)), until(unit("b", 0, 0, 4, "n2", "n3"), in(50))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(50)},
		"those who leave are gone first": {units: []Unit{{Name: "a", Leaving: true, Pods: unit("", 0, 0, 4, "n0", "n1").Pods}, until(unit("b", 0, 0, 4, "n2", "n3"), in(50))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r0", at: start},
		"more than there is": {units: nil, g: wants(5, 4, gang.Topology{}), no: true},
	} {
		w := cluster(4, 4)
		w.Units = c.units
		r, ok := Reserve(w, c.g, start)
		if ok == c.no || r.Domain != c.domain || !r.At.Equal(c.at) || (ok && len(r.Seats) != c.g.Size) {
			t.Errorf("%s: %v %+v", name, ok, r)
		}
	}
}

// job is one in the simulated cluster below.
type job struct {
	name           string
	g              gang.Gang
	priority       int32
	came, began    int
	runs, declared int // ticks; declared 0: it says nothing
	seats          []gang.Seat
}

// simulated is a cluster in which jobs come and go, queue by priority and age, and the first that does not fit gets a
// reservation once it has waited for after ticks.
type simulated struct {
	w       World
	tick    int
	after   int
	waiting []*job
	running []*job
	holder  *job
	hold    Hold
	room    Reservation
}

const minute = time.Minute

func (s *simulated) now() time.Time { return start.Add(time.Duration(s.tick) * minute) }

func (s *simulated) world() World {
	w := s.w
	for _, j := range s.running {
		u := Unit{Name: j.name, Priority: j.priority}
		if j.declared > 0 {
			u.End = start.Add(time.Duration(j.began+j.declared) * minute)
		}
		for _, seat := range j.seats {
			u.Pods = append(u.Pods, Pod{Node: seat.Node, What: j.g.Roles[0].Requests, Devices: true, Tenant: true})
		}
		w.Units = append(w.Units, u)
	}
	return w
}

func (s *simulated) step(t *testing.T) {
	s.running = slices.DeleteFunc(s.running, func(j *job) bool { return s.tick >= j.began+j.runs })
	slices.SortStableFunc(s.waiting, func(a, b *job) int {
		if a.priority != b.priority {
			return int(b.priority - a.priority)
		}
		return a.came - b.came
	})
	first := true
	for _, j := range slices.Clone(s.waiting) {
		if s.place(t, j) {
			s.waiting = slices.DeleteFunc(s.waiting, func(k *job) bool { return k == j })
			if j == s.holder {
				s.holder = nil
			}
			continue
		}
		if first && s.holder != j && s.tick-j.came >= s.after {
			if r, ok := Reserve(s.world(), j.g, s.now()); ok {
				s.holder, s.room, s.hold = j, r, Hold{Priority: j.priority, Reserved: true, At: r.At}
			}
		}
		first = false
	}
	s.tick++
}

func (s *simulated) place(t *testing.T, j *job) bool {
	w := s.world()
	x := w.all(w.index())
	for u := range w.Units {
		x.put(u)
	}
	end := time.Time{}
	if j.declared > 0 {
		end = s.now().Add(time.Duration(j.declared) * minute)
	}
	bound := s.holder != nil && s.holder != j && s.hold.Binds(j.priority, end)
	if bound {
		for _, seat := range s.room.Seats {
			i, _ := x.tree.Find(seat.Node)
			x.tree.Force(i, s.holder.g.Roles[0].Requests)
		}
	}
	p, no := gang.Place(x.tree, j.g)
	if no != nil {
		return false
	}
	j.seats, j.began = p.Seats, s.tick
	s.running = append(s.running, j)
	if bound { // HeldIsHeld
		x.tree.Undo(0)
		for _, seat := range j.seats {
			i, _ := x.tree.Find(seat.Node)
			x.tree.Force(i, j.g.Roles[0].Requests)
			held := int64(0)
			for _, mine := range s.room.Seats {
				if mine.Node == seat.Node {
					held += s.holder.g.Roles[0].Requests[gpu]
				}
			}
			if x.tree.Free(i, gpu) < held {
				t.Fatalf("tick %d: %s takes held room on %s", s.tick, j.name, seat.Node)
			}
		}
	}
	return true
}

// NobodyStarves: a gang that would fit in an empty cluster is placed within a bound, whatever small jobs of no higher
// priority arrive: before it in order are at most the other large ones, each of which waits for its reservation to be
// made and for the longest job that was in it.
func TestNobodyStarves(t *testing.T) {
	const longest = 20
	for seed := range int64(6) {
		rng := rand.New(rand.NewSource(seed))
		s := &simulated{w: cluster(8, 4), after: rng.Intn(5)}
		large := 1 + rng.Intn(3)
		bound := large*(s.after+2*longest+2) + longest
		var bigs []*job
		for k := range 30 + bound {
			for range min(rng.Intn(6), 25-len(s.waiting)) {
				j := &job{name: fmt.Sprintf("s%d-%d", k, rng.Int()), g: wants(1+rng.Intn(2), int64(1+rng.Intn(2)), gang.Topology{}), came: s.tick, runs: 1 + rng.Intn(longest), priority: 1}
				if rng.Intn(2) == 0 {
					j.declared = j.runs + rng.Intn(longest-j.runs+1)
				}
				s.waiting = append(s.waiting, j)
			}
			if k >= 20 && len(bigs) < large {
				asks := []gang.Topology{{}, {Required: "zone"}}
				j := &job{name: fmt.Sprint("big", k), g: wants(4, 4, asks[rng.Intn(2)]), came: s.tick, runs: 1 + rng.Intn(longest), priority: 1}
				bigs, s.waiting = append(bigs, j), append(s.waiting, j)
			}
			s.step(t)
			for _, j := range bigs {
				if slices.Contains(s.waiting, j) && s.tick-j.came > bound {
					t.Fatalf("seed %d: %s has waited %d ticks, more than %d", seed, j.name, s.tick-j.came, bound)
				}
			}
		}
	}
}

// Without the reservation it would starve: the test above could fail.
func TestWithoutReservationItStarves(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	s := &simulated{w: cluster(8, 4), after: 1 << 30}
	big := &job{name: "big", g: wants(8, 4, gang.Topology{}), came: 20, runs: 1, priority: 1}
	for k := range 300 {
		for range min(6, 25-len(s.waiting)) {
			s.waiting = append(s.waiting, &job{name: fmt.Sprint(k, rng.Int()), g: wants(1, 2, gang.Topology{}), came: s.tick, runs: 1 + rng.Intn(20), priority: 1})
		}
		if k == 20 {
			s.waiting = append(s.waiting, big)
		}
		s.step(t)
	}
	if !slices.Contains(s.waiting, big) {
		t.Error("it was placed")
	}
}

func TestDefragment(t *testing.T) {
	w := cluster(4, 4)
	w.Units = []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 2, "n2"), unit("c", 0, 0, 4, "n3")}
	var said []string
	freed, stopped := Defragment(w, "rack", 3)
	if stopped {
		t.Error("a search among four nodes was stopped")
	}
	for _, f := range freed {
		text := fmt.Sprintf("%s %s: %d of %d used:", f.Level, f.Domain, f.Used, f.Nodes)
		for _, m := range f.Moves {
			for _, s := range m.Seats {
				text += fmt.Sprintf(" %s %s to %s", m.Unit, s.Member, s.Node)
			}
		}
		said = append(said, text)
	}
	want := []string{"rack z0/r0: 1 of 2 used: a n0 to n2", "rack z0/r1: 2 of 2 used: b n2 to n0 c n3 to n1"}
	slices.Sort(said)
	if !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}

// What is told could be done: nobody is in two places, no node holds more than it has, and the domain is empty after.
func TestDefragmentMovesFit(t *testing.T) {
	moved := 0
	for seed := range int64(300) {
		w := randomWorld(rand.New(rand.NewSource(seed)))
		freed, _ := Defragment(w, "", 5)
		for _, f := range freed {
			moved++
			x := w.all(w.index())
			for u := range w.Units {
				if !w.Units[u].Leaving {
					x.put(u)
				}
			}
			byName := map[string]int{}
			for u := range w.Units {
				byName[w.Units[u].Name] = u
			}
			level, _ := x.tree.FindLevel(f.Level)
			left := map[string]int64{}
			inside := map[string]bool{}
			for i := range x.tree.All() {
				left[x.tree.Name(i)] = x.tree.Free(i, gpu)
				inside[x.tree.Name(i)] = x.tree.Path(x.tree.Ancestor(x.tree.Leaf(i), level)) == f.Domain
			}
			for _, m := range f.Moves {
				for _, s := range m.Seats {
					each := w.Units[byName[m.Unit]].Pods[0].What[gpu]
					left[s.Node] -= each
					left[s.Member] += each
					at, _ := x.tree.Find(s.Node)
					if x.tree.Whole(x.tree.Ancestor(x.tree.Leaf(at), level)) {
						t.Fatalf("seed %d: %s moves into a whole domain to free %s", seed, m.Unit, f.Domain)
					}
					if inside[s.Node] || !inside[s.Member] {
						t.Fatalf("seed %d: %s moves from %s to %s to free %s", seed, m.Unit, s.Member, s.Node, f.Domain)
					}
				}
			}
			for _, n := range w.Nodes {
				if left[n.Name] < 0 || (inside[n.Name] && left[n.Name] != n.Free[gpu]) {
					t.Fatalf("seed %d: %s has %d left of %d after %+v", seed, n.Name, left[n.Name], n.Free[gpu], f)
				}
			}
		}
	}
	if moved < 50 {
		t.Errorf("only %d domains could be freed", moved)
	}
}
