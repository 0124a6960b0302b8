package protocol

import (
	"cmp"
	"slices"
)

// MaxBranch bounds the branches in a report, as MaxGeneration does.
const MaxBranch = 1 << 52

// Point is a step of a branch. A branch is one line of training, numbered from 0; a rollback begins the next one, which trains the steps
// after it again. Within a generation each step number occurs once.
type Point struct {
	Branch int64 `json:"branch,omitempty"`
	Step   int64 `json:"step"`
}

// Compare orders points: the point of the higher branch is newer, whatever the steps are.
func (p Point) Compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Branch, o.Branch), cmp.Compare(p.Step, o.Step))
}

// GivesUp reports whether a generation that restores p gives up a step that is sealed in memory: it is above p, or of another branch.
func (p Point) GivesUp(sealed Point) bool {
	return sealed.Step > p.Step || sealed.Branch != p.Branch
}

// Steps returns the numbers of points.
func Steps(points []Point) []int64 {
	var steps []int64
	for _, p := range points {
		steps = append(steps, p.Step)
	}
	return steps
}

// ByStep sorts points by their numbers.
func ByStep(points []Point) {
	slices.SortFunc(points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Branch, b.Branch)) })
}
