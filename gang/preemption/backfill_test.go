package preemption

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

func TestHoldingExcludes(t *testing.T) {
	at := start.Add(time.Hour)
	soon, late := start.Add(time.Minute), start.Add(2*time.Hour)
	for name, c := range map[string]struct {
		hold     Holding
		priority int32
		end      time.Time
		want     bool
	}{
		"a claim binds its equals":                       {Holding{Priority: 5}, 5, soon, true},
		"a claim binds those below":                      {Holding{Priority: 5, Preempts: true}, 4, soon, true},
		"a claim does not bind those above":              {Holding{Priority: 5}, 6, late, false},
		"who ends in time may fill in":                   {Holding{Priority: 5, Reserved: true, At: at}, 5, soon, false},
		"to the second":                                  {Holding{Priority: 5, Reserved: true, At: at}, 5, at, false},
		"who ends later may not":                         {Holding{Priority: 5, Reserved: true, At: at}, 5, late, true},
		"who says nothing may not":                       {Holding{Priority: 5, Reserved: true, At: at}, 5, time.Time{}, true},
		"nor where nobody knows when it is free":         {Holding{Priority: 5, Reserved: true}, 5, soon, true},
		"who can be told to leave may":                   {Holding{Priority: 5, Reserved: true, Preempts: true}, 4, late, false},
		"not where the gang has nobody leave":            {Holding{Priority: 5, Reserved: true}, 4, late, true},
		"surplus may not, though it could":               {Holding{Priority: 5, Reserved: true, Preempts: true}, Lowest, late, true},
		"surplus that ends in time may":                  {Holding{Priority: 5, Reserved: true, At: at}, Lowest, soon, false},
		"who is above goes first, in a reservation, too": {Holding{Priority: 5, Reserved: true}, 6, late, false},
	} {
		if got := c.hold.Excludes(c.priority, c.end); got != c.want {
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
		ended  []int
		no     bool
	}{
		"the first rack to be free": {units: []Unit{until(unit("a", 0, 0, 4, "n0"), in(30)), until(unit("b", 0, 0, 4, "n1"), in(10)), until(unit("c", 0, 0, 4, "n2", "n3"), in(20))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(20), ended: []int{1, 2}},
		"one who says nothing is not waited for": {units: []Unit{unit("a", 0, 0, 4, "n0"), until(unit("b", 0, 0, 4, "n1"), in(10)), until(unit("c", 0, 0, 4, "n2", "n3"), in(20))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(20), ended: []int{1, 2}},
		"nobody says anything: where least is in the way": {units: []Unit{unit("a", 7, 0, 4, "n0", "n1"), unit("b", 9, 0, 1, "n2"), unit("c", 9, 0, 1, "n3")},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", ended: []int{1, 2}},
		"some say when, but not all in the way: those who do cost nothing": {
			units: []Unit{until(unit("a", 0, 0, 4, "n0"), in(30)), unit("b", 0, 0, 1, "n1"), unit("c", 0, 0, 2, "n2"), unit("d", 0, 0, 2, "n3")},
			g:     wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r0", ended: []int{0, 1}},
		"nobody says anything, nobody has devices: where fewer pods are in the way": {
			units: []Unit{{
				Name: "a",
				Pods: []Pod{
					{Node: "n0", Resources: topology.Resources{gpu: 2}},
					{Node: "n0", Resources: topology.Resources{gpu: 2}},
					{Node: "n1", Resources: topology.Resources{gpu: 4}},
				},
			},
				{Name: "b", Pods: []Pod{{Node: "n2", Resources: topology.Resources{gpu: 4}}}}, {Name: "c", Pods: []Pod{{Node: "n3", Resources: topology.Resources{gpu: 4}}}}},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", ended: []int{1, 2}},
		"overdue is as good as nothing said": {units: []Unit{until(unit("a", 0, 0, 4, "n0", "n1"), in(-1)), until(unit("b", 0, 0, 4, "n2", "n3"), in(50))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r1", at: in(50), ended: []int{1}},
		"those who leave are gone first": {units: []Unit{{Name: "a", Terminating: true, Pods: unit("", 0, 0, 4, "n0", "n1").Pods}, until(unit("b", 0, 0, 4, "n2", "n3"), in(50))},
			g: wants(2, 4, gang.Topology{Required: "rack"}), domain: "rack z0/r0", at: start},
		"more than there is": {units: nil, g: wants(5, 4, gang.Topology{}), no: true},
	} {
		w := cluster(4, 4)
		w.Units = c.units
		r, ok := Reserve(w, c.g, start)
		if ok == c.no || r.Domain != c.domain || !r.At.Equal(c.at) || (ok && len(r.Assignments) != c.g.Size) ||
			!slices.Equal(slices.Sorted(slices.Values(r.Ended)), c.ended) {
			t.Errorf("%s: %v %+v", name, ok, r)
		}
	}
}

// job is a job of the simulated cluster.
type job struct {
	name           string
	g              gang.Gang
	priority       int32
	came, began    int
	runs, declared int // ticks; declared 0: unknown
	assignments    []gang.Assignment
}

// simulated is a cluster in which jobs arrive and end and queue by priority and age. The first job that does not fit gets a reservation
// after it has waited for a number of ticks.
type simulated struct {
	w       World
	tick    int
	after   int
	waiting []*job
	running []*job
	holder  *job
	hold    Holding
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
		for _, assignment := range j.assignments {
			u.Pods = append(u.Pods, Pod{Node: assignment.Node, Resources: j.g.Roles[0].Requests, Devices: true, Tenant: true})
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
				s.holder, s.room, s.hold = j, r, Holding{Priority: j.priority, Reserved: true, At: r.At}
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
	bound := s.holder != nil && s.holder != j && s.hold.Excludes(j.priority, end)
	if bound {
		for _, assignment := range s.room.Assignments {
			i, _ := x.tree.Find(assignment.Node)
			x.tree.Force(i, s.holder.g.Roles[0].Requests)
		}
	}
	p, refusal := gang.Place(x.tree, j.g)
	if refusal != nil {
		return false
	}
	j.assignments, j.began = p.Assignments, s.tick
	s.running = append(s.running, j)
	if bound { // HeldIsHeld
		x.tree.Undo(0)
		for _, assignment := range j.assignments {
			i, _ := x.tree.Find(assignment.Node)
			x.tree.Force(i, j.g.Roles[0].Requests)
			held := int64(0)
			for _, mine := range s.room.Assignments {
				if mine.Node == assignment.Node {
					held += s.holder.g.Roles[0].Requests[gpu]
				}
			}
			if x.tree.Free(i, gpu) < held {
				t.Fatalf("tick %d: %s takes held room on %s", s.tick, j.name, assignment.Node)
			}
		}
	}
	return true
}

// Rule NobodyStarves of docs/designs/priority.md: a gang that would fit in an empty cluster is placed within a bounded time, however many
// small jobs of no higher priority arrive. At most the other large gangs are before it, each of which waits for its reservation and then
// for the longest job in the reserved room.
func TestNobodyStarves(t *testing.T) {
	const longest = 20
	for seed := range seeds.All(t, int64(6)) {
		rng := rand.New(rand.NewSource(seed))
		s := &simulated{w: cluster(8, 4), after: rng.Intn(5)}
		large := 1 + rng.Intn(3)
		bound := large*(s.after+2*longest+2) + longest
		var bigs []*job
		for k := range 30 + bound {
			for range min(rng.Intn(6), 25-len(s.waiting)) {
				j := &job{
					name:     fmt.Sprintf("s%d-%d", k, rng.Int()),
					g:        wants(1+rng.Intn(2), int64(1+rng.Intn(2)), gang.Topology{}),
					came:     s.tick,
					runs:     1 + rng.Intn(longest),
					priority: 1,
				}
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

// Without reservations the gang starves. This shows that the test above can fail.
func TestWithoutReservationItStarves(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	s := &simulated{w: cluster(8, 4), after: 1 << 30}
	big := &job{name: "big", g: wants(8, 4, gang.Topology{}), came: 20, runs: 1, priority: 1}
	for k := range 300 {
		for range min(6, 25-len(s.waiting)) {
			s.waiting = append(
				s.waiting,
				&job{name: fmt.Sprint(k, rng.Int()), g: wants(1, 2, gang.Topology{}), came: s.tick, runs: 1 + rng.Intn(20), priority: 1},
			)
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
	shapes := unit("a", 0, 0, 1, "n0", "n1")
	shapes.Pods[1].Resources = topology.Resources{gpu: 3}
	alone := unit("a", 0, 0, 1, "n0")
	alone.Pods[0].Exclusive = true
	for name, c := range map[string]struct {
		nodes  int
		units  []Unit
		others bool // a pod of no unit uses n0, too
		of     string
		most   int
		want   []string
	}{
		"both racks, the one with fewer pods first": {4, []Unit{unit("a", 0, 0, 1, "n0"), unit("d", 0, 0, 2, "n2"), unit("c", 0, 0, 4, "n3")}, false, "rack", 3,
			[]string{"rack z0/r0: 1 of 2 used, 1 pods: a n0 to n2", "rack z0/r1: 2 of 2 used, 2 pods: c n3 to n1 d n2 to n0"}},
		"one at most": {4, []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 2, "n2"), unit("c", 0, 0, 4, "n3")}, false, "rack", 1,
			[]string{"rack z0/r0: 1 of 2 used, 1 pods: a n0 to n2"}},
		"nobody moves to what is whole":      {4, []Unit{unit("a", 0, 0, 1, "n0")}, false, "rack", 3, nil},
		"who is no unit stays":               {4, []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 1, "n2")}, true, "rack", 3, []string{"rack z0/r1: 1 of 2 used, 1 pods: b n2 to n0"}},
		"the level that is named":            {8, []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 1, "n4")}, false, "zone", 1, []string{"zone z0: 1 of 4 used, 1 pods: a n0 to n4"}},
		"each level":                         {8, []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 1, "n4")}, false, "", 1, []string{"zone z0: 1 of 4 used, 1 pods: a n0 to n4", "rack z0/r0: 1 of 2 used, 1 pods: a n0 to n4"}},
		"pods of two shapes":                 {4, []Unit{shapes, unit("b", 0, 0, 3, "n2"), unit("c", 0, 0, 1, "n3")}, false, "rack", 1, []string{"rack z0/r0: 2 of 2 used, 2 pods: a n0 to n2 a n1 to n3"}},
		"one that wants its node alone":      {4, []Unit{alone, unit("b", 0, 0, 1, "n2"), unit("c", 0, 0, 1, "n3")}, false, "rack", 3, []string{"rack z0/r1: 2 of 2 used, 2 pods: b n2 to n1 c n3 to n1"}},
		"one rack alone, with nowhere to go": {2, []Unit{unit("a", 0, 0, 1, "n0"), unit("b", 0, 0, 1, "n1")}, false, "rack", 3, nil},
	} {
		w := cluster(c.nodes, 4)
		w.Units, w.Nodes[0].Used = c.units, c.others
		freed, stopped := Defragment(w, c.of, c.most)
		if stopped {
			t.Errorf("%s: a search among a few nodes was stopped", name)
		}
		var said []string
		for _, f := range freed {
			text := fmt.Sprintf("%s %s: %d of %d used, %d pods:", f.Level, f.Domain, f.Used, f.Nodes, f.Pods)
			for _, m := range f.Moves {
				for _, s := range m.Assignments {
					text += fmt.Sprintf(" %s %s to %s", m.Unit, s.Member, s.Node)
				}
			}
			said = append(said, text)
		}
		if !slices.Equal(said, c.want) {
			t.Errorf("%s: %q, want %q", name, said, c.want)
		}
	}
}

// The moves are possible: no pod is in two places, no node is overcommitted, and the domain is empty afterwards.
func TestDefragmentMovesFit(t *testing.T) {
	moved := 0
	for seed := range seeds.All(t, int64(300)) {
		w := randomWorld(rand.New(rand.NewSource(seed)))
		freed, _ := Defragment(w, "", 5)
		for _, f := range freed {
			moved++
			x := w.all(w.index())
			for u := range w.Units {
				if !w.Units[u].Terminating {
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
				for _, s := range m.Assignments {
					each := w.Units[byName[m.Unit]].Pods[0].Resources[gpu]
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
	if !seeds.One() && moved < 50 {
		t.Errorf("only %d domains could be freed", moved)
	}
}
