package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Line is a gang's line of training: where each branch after the first began, ordered by branch. A later branch began after a higher step:
// a branch that begins at or before an earlier one's start replaces that one.
type Line []Start

// Start is a branch and the step From of an older one after which it began; 0: the beginning.
type Start struct{ Branch, From int64 }

// mostStarts bounds a line: the stored object must not grow with a gang's life.
const mostStarts = 32

// Has reports whether a step is on the line. A step that is not was given up and is never restored.
func (l Line) Has(p protocol.Point) bool { return l.endOf(p) == nil }

// Ended returns which branch gave up a step, and after which step that branch began; the zero Start: none.
func (l Line) Ended(p protocol.Point) Start {
	if s := l.endOf(p); s != nil {
		return *s
	}
	return Start{}
}

func (l Line) endOf(p protocol.Point) *Start {
	for i := range l {
		if l[i].Branch > p.Branch && l[i].From < p.Step {
			return &l[i]
		}
	}
	return nil
}

// Newest returns the newest branch on the line; 0: the first.
func (l Line) Newest() int64 {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].Branch
}

// Begin returns the line after a new branch began after a step. A given-up step stays given up. If there are too many starts, the second
// oldest branch counts as begun where the oldest did: that gives up a few more steps of very old branches, and makes none available again.
func (l Line) Begin(branch, from int64) Line {
	out := slices.DeleteFunc(slices.Clone(l), func(s Start) bool { return s.From >= from || s.Branch >= branch })
	for _, s := range l { // a branch that began earlier keeps its start
		if s.Branch == branch {
			from = min(from, s.From)
		}
	}
	out = append(out, Start{branch, from})
	for len(out) > mostStarts {
		out[1].From = out[0].From
		out = out[1:]
	}
	return out
}
