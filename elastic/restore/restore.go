// Package restore finds the step from which a gang continues. Find returns the newest step on the gang's line that
// every rank holds in memory or, according to the stored record, can read from storage. Steps that were given up are
// not on that line.
package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Pod is the pod of one slot.
type Pod struct {
	// Ranks is its number of ranks; Held are the steps that each rank holds in memory, ascending. A rank without an entry holds none.
	Ranks int
	Held  [][]protocol.Point
	// Gone: its memory does not count, and its replacement should be able to read storage.
	Gone bool
	// Given: its ranks get any step from a rank that holds it (Give).
	Given bool
	// Failed are the steps that it failed to read from storage.
	Failed []protocol.Mark
}

// MostWhole is how many complete stored steps are tried, the newest ones: only a few failed fetches per pod are stored.
const MostWhole = 8

// Part is one rank's part of a step in storage.
type Part struct {
	protocol.Mark
	Rank int
}

// Stored is the recorded content of storage.
type Stored struct {
	// Whole are the steps with every rank's part, newest first; Parts are parts of other steps.
	Whole []protocol.Mark
	Parts []Part
	// World is the number of ranks that stored them; 0: unknown. A gang of another size cannot use them.
	World int
	// Worlds are the numbers of ranks of earlier generations, ascending, where they differ from World.
	Worlds []World
	// Apart: steps up to this generation may have been trained again later without a record. Use one only if every step
	// held in memory is newer. 0: none.
	Apart int64
}

// World is the number of ranks of all generations up to one, from the World before it.
type World struct {
	Until int64
	Ranks int
}

// WorldOf returns the number of ranks that a generation had; 0: unknown.
func (s Stored) WorldOf(generation int64) int {
	for _, w := range s.Worlds {
		if generation <= w.Until {
			return w.Ranks
		}
	}
	return s.World
}

// Point is a step, and what each slot must fetch from storage so that every rank has it. The zero Point: none.
type Point struct {
	protocol.Point
	Fetch map[int]protocol.Mark
}

// Find returns the newest point on the line that is available to all pods, one for each slot.
func Find(pods []Pod, stored Stored, line Line) Point { return find(pods, stored, line, false) }

// Insist is Find with steps that failed to be read: these are tried again while there is no other step. Starting from the beginning would
// discard what users stored.
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

// candidates returns all steps on the line that may be available to every rank, newest first. A step without parts in storage must be in
// the memory of every rank, so the list of one rank has all of these.
func candidates(pods []Pod, stored Stored, line Line) []protocol.Point {
	var steps []protocol.Point
	add := func(p protocol.Point) { // these are few
		if p.Step > 0 && !slices.Contains(steps, p) && line.Has(p) {
			steps = append(steps, p)
		}
	}
	if i := slices.IndexFunc(pods, func(p Pod) bool { return !p.Gone && !p.Given && p.Ranks > 0 }); i >= 0 && len(pods[i].Held) > 0 {
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

// sources returns which slots lack a step and the mark that each fetches; ok is false if a slot finds it nowhere.
func sources(step protocol.Point, pods []Pod, stored Stored, insist bool) (fetch map[int]protocol.Mark, ok bool) {
	fetch = map[int]protocol.Mark{}
	world := 0
	for i := range pods {
		world += pods[i].Ranks
	}
	base, apart, gives := 0, false, false
	for i := range pods {
		p, want := &pods[i], protocol.Mark{}
		if p.Given {
			base += p.Ranks
			continue
		}
		gives = gives || p.Ranks > 0
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
		// The gang waits for a pod whose storage does not answer: continuing from an older step would lose a stored one.
		if want != (protocol.Mark{}) {
			fetch[i] = want
		}
	}
	return fetch, gives && !(apart && Reached(pods, step))
}

// Reached reports whether some pod holds a step in memory, or an older one.
func Reached(pods []Pod, step protocol.Point) bool {
	return slices.ContainsFunc(pods, func(p Pod) bool {
		return !p.Gone && slices.ContainsFunc(p.Held, func(held []protocol.Point) bool { return len(held) > 0 && held[0].Compare(step) <= 0 })
	})
}

func (s Stored) apart(m protocol.Mark) bool { return s.Apart > 0 && m.Generation <= s.Apart }

// Find returns where storage has a rank's part of a step, for a gang of that many ranks, without parts that failed to be read.
func (s Stored) Find(step protocol.Point, rank, world int, failed []protocol.Mark) (protocol.Mark, bool) {
	of := func(m protocol.Mark) bool {
		n := s.WorldOf(m.Generation)
		return m.Point() == step && (n == 0 || n == world) && !slices.Contains(failed, m)
	}
	for _, p := range s.Parts {
		if p.Rank == rank && of(p.Mark) {
			return p.Mark, true
		}
	}
	for _, m := range s.Whole {
		if of(m) {
			return m, true
		}
	}
	return protocol.Mark{}, false
}

// InMemory returns the newest step on the line that every rank holds in memory; the zero Point: none, and training starts from the
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

// Last returns the newest step of an inventory; the zero Point: it is empty.
func Last(inventory []protocol.Point) protocol.Point {
	last := protocol.Point{}
	for _, p := range inventory {
		if p.Compare(last) > 0 {
			last = p
		}
	}
	return last
}
