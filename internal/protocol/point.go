package protocol

import (
	"cmp"
	"slices"
)

// MaxBranch bounds what an agent may claim, as MaxGeneration does.
const MaxBranch = 1 << 52

// Point is a step of a branch. A branch is one line of training, from 0; going back on purpose begins the next one, which makes the steps
// after that anew. Within a generation a number alone is enough: it has each once.
type Point struct {
	Branch int64 `json:"branch,omitempty"`
	Step   int64 `json:"step"`
}

// Compare orders points: of two the one of the higher branch is newer, whatever their steps are.
func (p Point) Compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Branch, o.Branch), cmp.Compare(p.Step, o.Step))
}

// GivesUp reports whether a generation that restores p gives up a step that is sealed in memory: it belongs to a history that ends
// there, or to another branch, of which nothing is needed any more.
func (p Point) GivesUp(sealed Point) bool {
	return sealed.Step > p.Step || sealed.Branch != p.Branch
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
