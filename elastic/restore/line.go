package restore

import (
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Line is a gang's line of training: where each branch after the first began. Its order is that of the branches, and the later began
// after the higher step, because of two the earlier is of no use where it did not.
type Line []Start

// Start says that a branch began after step From of an older one. 0: at the beginning.
type Start struct{ Branch, From int64 }

// mostStarts bounds a line: the object that it is stored in must not grow with a gang's life.
const mostStarts = 32

// Has says whether a step is on the line. One that is not was given up and is never restored, whoever still holds it.
func (l Line) Has(p protocol.Point) bool { return l.endOf(p) == nil }

// Ended says which branch gave up a step, and after which step that began; the zero Start: none.
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

// Newest is the newest branch that the line names; 0: the first.
func (l Line) Newest() int64 {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].Branch
}

// Begin is the line on which a branch, none of those on it being newer, begins after a step. What the line gives up it gives up ever after.
//
// Where there are too many starts, the second oldest branch counts as begun where the oldest did: of branches so long past that gives up a
// few steps more, and none again.
func (l Line) Begin(branch, from int64) Line {
	out := slices.DeleteFunc(slices.Clone(l), func(s Start) bool { return s.From >= from || s.Branch >= branch })
	for _, s := range l { // a branch that began before does not begin later
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
