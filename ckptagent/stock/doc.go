// Package stock writes what stock torch.distributed.checkpoint needs to read a step's rank files where they lie: an index (.metadata) that
// names each tensor's bytes in them, and a file of all that is no tensor. It promises: names and values are those that holdfast.export gives
// to the same step; no pickle is ever read; whatever lies in a rank's state ends in an index that names nothing outside of its files, or
// in ErrNotNamed with the reason; memory is bounded by what is kept of each name, not by how large states or how many equal ranks are.
// See "Read in place" in docs/formats/storage.md.
package stock

import (
	"errors"
	"fmt"
)

// ErrNotNamed says that a step cannot be named to stock torch; the text says why.
var ErrNotNamed = errors.New("cannot be read in place by stock torch")

func notNamed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotNamed, fmt.Sprintf(format, args...))
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
	maxDims       = 64
	maxDepth      = 200
)
