package protocol

import (
	"cmp"
	"encoding/json"
	"slices"
)

const (
	// CheckpointFormat is the newest version of docs/formats/checkpoint.md that is spoken: from 2 on a step has a branch.
	CheckpointFormat = 2
	// BranchFormat is the first in which steps have a branch.
	BranchFormat = 2
	// MaxBranch bounds what an agent may claim, as MaxGeneration does.
	MaxBranch = 1 << 52
	// UnknownBranch is the branch of a step that was named by somebody who knows none. It is never sent.
	UnknownBranch = -1
)

// Point is a step of a branch. A branch is one line of training, from 0; going back on purpose begins the next one, which makes the steps
// after that anew. Within a generation a number alone is enough: it has each once.
type Point struct{ Branch, Step int64 }

// Compare orders points: of two the one of the higher branch is newer, whatever their steps are.
func (p Point) Compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Branch, o.Branch), cmp.Compare(p.Step, o.Step))
}

// GivesUp says whether a generation that restores p gives up a step that is sealed in memory: it belongs to a history that ends there, or to
// another branch, of which nothing is needed any more.
func (p Point) GivesUp(sealed Point) bool {
	return sealed.Step > p.Step || p.Branch != UnknownBranch && sealed.Branch != p.Branch
}

// Steps are the numbers of points.
func Steps(points []Point) []int64 {
	var steps []int64
	for _, p := range points {
		steps = append(steps, p.Step)
	}
	return steps
}

// ByStep orders points by their numbers.
func ByStep(points []Point) {
	slices.SortFunc(points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Branch, b.Branch)) })
}

// pointOf is a Point as it is stored where its branch is not the first.
type pointOf struct {
	Branch int64 `json:"branch"`
	Step   int64 `json:"step"`
}

// MarshalJSON writes a step of the first branch as its number, as all were before there were others.
func (p Point) MarshalJSON() ([]byte, error) {
	if p.Branch == 0 {
		return json.Marshal(p.Step)
	}
	return json.Marshal(pointOf(p))
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Point) UnmarshalJSON(b []byte) error {
	*p = Point{}
	if len(b) > 0 && b[0] != '{' {
		return json.Unmarshal(b, &p.Step)
	}
	return json.Unmarshal(b, (*pointOf)(p))
}
