package gang

import (
	"fmt"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// Topology is a gang's constraints on the fabric. A level is named as in the tree, or by its label key. The zero value has none:
// members are placed as close together as they fit.
type Topology struct {
	// Required: all members are in one domain of this level.
	Required string
	// Preferred is the narrowest level at which members are packed closely; below it domains are kept whole rather than members close.
	// Empty: the node.
	Preferred string
	// SliceLevel: each used domain of this level gets the same number of members, a slice. Empty: the narrowest level if SliceSize
	// or Block is set, otherwise members are spread as they fit.
	SliceLevel string
	// SliceSize is how many members a slice has; 0: as many as fit, so that there are few.
	SliceSize int
	// Block is a number of members that stay together (tensor times pipeline parallelism): a slice consists of whole blocks. 0: 1.
	Block int
	// Uneven: slices may differ, as long as they consist of whole blocks.
	Uneven bool
	// Spares is how many nodes stay free in each domain of SliceLevel (or the narrowest level) that is used; cordoned and sick
	// nodes count as used spares. A replaced member may use them.
	Spares int
	// Whole: only nodes without other jobs' pods.
	Whole bool
}

// rules is a Topology with its levels found in a tree.
type rules struct {
	// required is a level, -1: none. near is the narrowest level at which distance comes before damage.
	required, near int
	// slice is the level of slices, -1: none; size, block and uneven say how they are made.
	slice, size, block int
	uneven             bool
	spares, sparesAt   int
	whole              bool
}

// unknownLevel is a level that the tree does not have, or a request for the narrowest level if there is none.
type unknownLevel struct {
	asked  string
	levels []topology.Level
}

func (u unknownLevel) Error() string {
	var have []string
	for _, l := range u.levels {
		have = append(have, l.Name+" ("+l.Key+")")
	}
	exist := "there are " + strings.Join(have, ", ")
	if len(have) == 0 {
		exist = "no node has a label with its place in the fabric"
	}
	if u.asked == "" {
		return "slices and spares require a topology level, and " + exist
	}
	return fmt.Sprintf("there is no topology level %q: %s", u.asked, exist)
}

// check refuses levels that contradict one another: such a constraint would have no effect.
func (t Topology) check(r rules) error {
	switch {
	case t.Required != "" && t.SliceLevel != "" && r.slice <= r.required:
		return fmt.Errorf("slices by level %q have no effect where all members are in one domain of level %q: name a narrower level for slices, or a wider one that is required", t.SliceLevel, t.Required)
	case t.Required != "" && t.Preferred != "" && r.near < r.required:
		return fmt.Errorf("to prefer level %q has no effect where level %q is required, which is narrower: prefer a level below it, or none", t.Preferred, t.Required)
	}
	return nil
}

func (t Topology) resolve(tree *topology.Tree) (rules, error) {
	levels := tree.Levels()
	narrowest := len(levels) - 1
	r := rules{
		required: -1,
		near:     len(levels),
		slice:    -1,
		size:     t.SliceSize,
		block:    max(1, t.Block),
		uneven:   t.Uneven,
		spares:   t.Spares,
		sparesAt: narrowest,
		whole:    t.Whole,
	}
	sliced := t.SliceLevel != "" || t.SliceSize > 0 || t.Block > 1
	if (sliced || t.Spares > 0) && narrowest < 0 {
		return r, unknownLevel{t.SliceLevel, levels}
	}
	for _, ask := range []struct {
		name string
		into *int
	}{{t.Required, &r.required}, {t.Preferred, &r.near}, {t.SliceLevel, &r.slice}} {
		if ask.name == "" {
			continue
		}
		level, ok := tree.FindLevel(ask.name)
		if !ok {
			return r, unknownLevel{ask.name, levels}
		}
		*ask.into = level
	}
	if sliced && r.slice < 0 {
		r.slice = narrowest
	}
	if r.slice >= 0 {
		r.sparesAt = r.slice
	}
	return r, t.check(r)
}

// shares returns the possible sizes of slices of n members, the largest first; uneven slices are counted in blocks. If all must be in one
// domain anyway, there is one slice.
func (r rules) shares(n int) []int {
	switch {
	case r.oneSlice():
		if n%r.block == 0 && (r.size == 0 || n == r.size || (r.uneven && n%r.size == 0)) {
			return []int{n}
		}
		return nil
	case r.uneven:
		if unit := max(r.size, r.block); n%unit == 0 {
			return []int{unit}
		}
		return nil
	case r.size > 0:
		if n%r.size == 0 && r.size%r.block == 0 {
			return []int{r.size}
		}
		return nil
	}
	var sizes []int
	for k := 1; k <= n/r.block; k++ {
		if n%k == 0 && (n/k)%r.block == 0 {
			sizes = append(sizes, n/k)
		}
	}
	return sizes
}

// oneSlice reports whether a domain of the required level is within one of the slices' level.
func (r rules) oneSlice() bool { return r.slice >= 0 && r.required >= r.slice }
