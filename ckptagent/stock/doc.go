// Package stock writes what stock torch.distributed.checkpoint needs to read a step's rank files where they lie: an index (.metadata) that
// names each tensor's bytes in them, and a file of all that is no tensor. It promises: names and values are those that holdfast.export gives
// to the same step; no pickle is ever read; whatever lies in a rank's state ends in an index that names nothing outside of its files, or
// in ErrNotNamed with the reason; memory is bounded by what is kept of each name, not by how large states or how many equal ranks are.
// See "Read in place" in docs/formats/storage.md.
package stock

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotNamed says that a step cannot be named to stock torch; the text says why.
var ErrNotNamed = errors.New("it cannot be named")

// asNotNamed turns a panic, which no state is meant to cause, into a reason: an index that is not there costs less than an agent.
func asNotNamed(err *error) {
	if p := recover(); p != nil {
		*err = notNamed("it is of a form that nobody has thought of: %v", p)
	}
}

func notNamed(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return fmt.Errorf("%w: %s", ErrNotNamed, text)
}

// Bounds of one index.
const (
	// MaxRegion is how large layout, tree, objects and table of one rank may each be.
	MaxRegion = 8 << 20
	// MaxValues is how large the file of values may be.
	MaxValues = 8 << 20
	// maxNodes is how many values the tree of one rank may have.
	maxNodes = 200_000
	// maxParts is how many parts of tensors and how many values may be named, maxPartsOfOne how many of one tensor.
	maxParts      = 250_000
	maxPartsOfOne = 1 << 16
	// maxNames is how many bytes the paths and shapes of an index may have together, which are kept whole.
	maxNames = 16 << 20
	// maxObjects is how many pickled objects one rank may have: each is read by itself.
	maxObjects = 4096
	// maxReason is how long a reason may be: it may tell what a state has.
	maxReason = 300
	maxDims   = 64
	maxDepth  = 200
)
