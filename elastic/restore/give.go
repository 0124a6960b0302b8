package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Give marks the pods whose ranks get their state from other ranks, where each group of so many consecutive slots holds the whole state:
// pods that are gone, or in which a rank holds no step on the line. If the others have no step in common, because some joined later and
// did not save the same step yet, the step on the line that most of them hold decides, and of several the newest. No pod is marked if the
// others do not hold all parts of any step.
func Give(pods []Pod, line Line, group int) {
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
		if (n > most || n == most && step.Compare(best) > 0) && together(pods, step, group) {
			best, most = step, n
		}
	}
	for i := range pods {
		switch p := &pods[i]; {
		case most == 0:
			p.Given = false
		case p.Ranks > 0 && most < all && !p.holds(best):
			p.Given = true
		}
	}
}

// together reports whether the pods that get no state from others hold all parts of a step.
func together(pods []Pod, step protocol.Point, group int) bool {
	held := make([]bool, group)
	for i := range pods {
		if p := &pods[i]; p.Ranks > 0 && !p.Given && p.holds(step) {
			held[i%group] = true
		}
	}
	return !slices.Contains(held, false)
}

// Ungiven returns pods whose ranks get no state from others.
func Ungiven(pods []Pod) []Pod {
	out := slices.Clone(pods)
	for i := range out {
		out[i].Given = false
	}
	return out
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
