// Package restore finds the step from which a gang continues: the newest on the gang's line of training that every
// rank holds in its memory or can read from storage, as far as recorded. It promises that every rank has its part of
// that step, that no newer step is whole, and that a given-up step is never restored.
package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Pod is what is known of the pod of one slot.
type Pod struct {
	// Ranks is its number of ranks; Held lists the steps that each holds in memory, ascending. A rank without an entry holds nothing.
	Ranks int
	Held  [][]protocol.Point
	// Gone: its memory does not count, and its replacement is expected to read storage.
	Gone bool
	// Failed are the steps that it failed to read from storage.
	Failed []protocol.Mark
}

// MostWhole is how many complete stored steps are ever tried, the newest ones: only a few failed reads per pod are remembered.
const MostWhole = 8

// Part is one rank's part of a step in storage.
type Part struct {
	protocol.Mark
	Rank int
}

// Stored is what is recorded of storage.
type Stored struct {
	// Whole are the steps with every rank's part, newest first; Parts are parts of other steps.
	Whole []protocol.Mark
	Parts []Part
	// World is the number of ranks that stored them; 0: unknown. A gang of another size cannot use them.
	World int
	// Apart: steps up to this generation may have been trained again later without a record. Use one only if every step
	// held in memory is newer. 0: none.
	Apart int64
}

// Point is a step, and what each slot must fetch from storage so that every rank has it. The zero Point: none.
type Point struct {
	protocol.Point
	Fetch map[int]protocol.Mark
}

// Find is the newest point on the line that the pods, one for each slot, can reach.
func Find(pods []Pod, stored Stored, line Line) Point { return find(pods, stored, line, false) }

// Insist is Find, but also with steps that failed to be read: they are tried again while there is no other step. To start from the
// beginning would discard what users stored.
func Insist(pods []Pod, stored Stored, line Line) Point { return find(pods, stored, line, true) }

// Reaches reports whether a step on the line is available to all pods, from memory or from storage.
func Reaches(p protocol.Point, pods []Pod, stored Stored, line Line) bool {
	_, ok := sources(p, pods, stored, false)
	return ok && line.Has(p)
}

func find(pods []Pod, stored Stored, line Line, insist bool) Point {
	for _, p := range candidates(pods, stored, line) {
		if fetch, ok := sources(p, pods, stored, insist); ok {
			return Point{p, fetch}
		}
	}
	return Point{}
}

// candidates are all steps on the line that every rank may have, newest first. What storage has no part of every rank holds in memory, so
// that one rank tells of all such: what others tell, and nobody else holds, costs nothing.
func candidates(pods []Pod, stored Stored, line Line) []protocol.Point {
	var steps []protocol.Point
	add := func(p protocol.Point) { // these are few
		if p.Step > 0 && !slices.Contains(steps, p) && line.Has(p) {
			steps = append(steps, p)
		}
	}
	if i := slices.IndexFunc(pods, func(p Pod) bool { return !p.Gone && p.Ranks > 0 }); i >= 0 && len(pods[i].Held) > 0 {
		for _, step := range pods[i].Held[0] {
			add(step)
		}
	}
	for _, m := range stored.Whole {
		add(m.Point())
	}
	for _, p := range stored.Parts {
		add(p.Point())
	}
	slices.SortFunc(steps, func(a, b protocol.Point) int { return b.Compare(a) })
	return steps
}

// sources says which slots lack a step and where each finds it; ok is false where one finds it nowhere.
func sources(step protocol.Point, pods []Pod, stored Stored, insist bool) (fetch map[int]protocol.Mark, ok bool) {
	fetch = map[int]protocol.Mark{}
	world := 0
	for i := range pods {
		world += pods[i].Ranks
	}
	base, apart := 0, false
	for i := range pods {
		p, want := &pods[i], protocol.Mark{}
		failed := p.Failed
		if insist {
			failed = nil
		}
		for local := range p.Ranks {
			if !p.Gone && local < len(p.Held) && Holds(p.Held[local], step) {
				continue
			}
			mark, ok := stored.Find(step, base+local, world, failed)
			if !ok || want != (protocol.Mark{}) && want != mark { // a pod fetches one mark
				return nil, false
			}
			want, apart = mark, apart || stored.apart(mark)
		}
		base += p.Ranks
		// A pod whose storage does not answer is waited for: to go on from an older step would lose what is safe.
		if want != (protocol.Mark{}) {
			fetch[i] = want
		}
	}
	return fetch, world > 0 && !(apart && Reached(pods, step))
}

// Reached reports whether some pod holds a step in memory, or an older one.
func Reached(pods []Pod, step protocol.Point) bool {
	return slices.ContainsFunc(pods, func(p Pod) bool {
		return !p.Gone && slices.ContainsFunc(p.Held, func(held []protocol.Point) bool { return len(held) > 0 && held[0].Compare(step) <= 0 })
	})
}

func (s Stored) apart(m protocol.Mark) bool { return s.Apart > 0 && m.Generation <= s.Apart }

// Find returns where storage has a rank's part of a step of a gang with this number of ranks, without parts that failed to be read.
func (s Stored) Find(step protocol.Point, rank, world int, failed []protocol.Mark) (protocol.Mark, bool) {
	if s.World > 0 && s.World != world {
		return protocol.Mark{}, false
	}
	for _, p := range s.Parts {
		if p.Rank == rank && p.Point() == step && !slices.Contains(failed, p.Mark) {
			return p.Mark, true
		}
	}
	for _, m := range s.Whole {
		if m.Point() == step && !slices.Contains(failed, m) {
			return m, true
		}
	}
	return protocol.Mark{}, false
}

// InMemory is the newest step on the line that every rank holds in memory; the zero Point: there is none, and training starts from the
// beginning. Each inventory lists one rank's steps.
func InMemory(inventories [][]protocol.Point, line Line) protocol.Point {
	newest := protocol.Point{}
	if len(inventories) == 0 {
		return newest
	}
	for _, p := range inventories[0] {
		if p.Compare(newest) > 0 && line.Has(p) &&
			!slices.ContainsFunc(inventories[1:], func(inv []protocol.Point) bool { return !Holds(inv, p) }) {
			newest = p
		}
	}
	return newest
}

// Holds reports whether an inventory has a step.
func Holds(inventory []protocol.Point, step protocol.Point) bool {
	return slices.Contains(inventory, step)
}

// Last is the newest step of an inventory; the zero Point: it is empty.
func Last(inventory []protocol.Point) protocol.Point {
	last := protocol.Point{}
	for _, p := range inventory {
		if p.Compare(last) > 0 {
			last = p
		}
	}
	return last
}
