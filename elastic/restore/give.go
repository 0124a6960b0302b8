package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Give marks the pods whose ranks get their state from other ranks, where the ranks of a pod hold the whole state: pods that are gone, or
// in which a rank holds no step on the line. If the others have no step in common, because some joined later and did not save the same
// step yet, the step on the line that most of them hold decides, and of several the newest.
func Give(pods []Pod, line Line) {
	none := func(h []protocol.Point) bool { return !slices.ContainsFunc(h, line.Has) }
	count, all := map[protocol.Point]int{}, 0
	for i := range pods {
		p := &pods[i]
		if p.Given = p.Ranks > 0 && (p.Gone || len(p.Held) < p.Ranks || slices.ContainsFunc(p.Held, none)); p.Given || p.Ranks == 0 {
			continue
		}
		all++
		for _, step := range p.Held[0] {
			if line.Has(step) && p.holds(step) {
				count[step]++
			}
		}
	}
	best, most := protocol.Point{}, 0
	for step, n := range count {
		if n > most || n == most && step.Compare(best) > 0 {
			best, most = step, n
		}
	}
	for i := range pods {
		if p := &pods[i]; p.Ranks > 0 && most < all && !p.holds(best) {
			p.Given = true
		}
	}
}

// holds reports whether all ranks of a pod hold a step.
func (p *Pod) holds(step protocol.Point) bool {
	return !slices.ContainsFunc(p.Held, func(h []protocol.Point) bool { return !Holds(h, step) })
}

// Newest returns the newest step on the line that all ranks of a pod hold; the zero Point: there is none.
func (p *Pod) Newest(line Line) protocol.Point {
	newest := protocol.Point{}
	if len(p.Held) == 0 {
		return newest
	}
	for _, step := range p.Held[0] {
		if step.Compare(newest) > 0 && line.Has(step) && p.holds(step) {
			newest = step
		}
	}
	return newest
}
