package stock

import (
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"
)

// inValues stands for a rank, where a value lies in the file of values.
const inValues = -1

// slice is where the bytes of a value lie; n is 0 for one that is not written, an empty dict.
type slice struct {
	rank  int
	at, n int64
	sum   [16]byte
}

// part is the part of a tensor that one rank has.
type part struct {
	// begin is the number, in the whole tensor, of the element that it begins with.
	begin int64
	at    int64 // in the rank's data, of what lies before its bytes
	n     int64 // of both
	rank  int32
	sizes int32 // number of its shape
}

// entry is all that has one name.
type entry struct {
	path string
	// last is the rank that named it last.
	last int
	// dtype, shape and like are of a tensor, and equal for all parts; dtype is empty for a value.
	dtype string
	shape int32
	like  string
	parts []part
	value slice
	// ranks hold the value, or what is like it; ownTold: each rank's own has a name of its own from here on.
	ranks   []int32
	ownTold bool
	// memo is one more than where a reader of .metadata has its name.
	memo int
}

// Index is what stock torch is told of a step. Ranks are added in order.
type Index struct {
	entries []*entry
	by      map[string]*entry
	values  []byte
	parts   int
	names   int // bytes of paths and shapes
	shapes  map[string]int32
	dims    [][]int64
	table   *table // of a step that holdfast.dcp saved
	ranks   int
}

// New makes an index of no ranks.
func New() *Index { return &Index{by: map[string]*entry{}, shapes: map[string]int32{}} }

var errValues = notNamed("what is no tensor has more than %d bytes", MaxValues)

// Add takes in the state of the next rank, whose data has so many bytes. An error that is not ErrNotNamed is of reading.
func (x *Index) Add(data io.ReaderAt, length int64) (err error) {
	defer asNotNamed(&err)
	rank := x.ranks
	s, err := readState(data, length)
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	planned := len(s.tree.kids) == 2 && s.tree.kids[0].s == planName
	switch {
	case rank > 0 && planned != (x.table != nil):
		err = notNamed("some ranks saved by holdfast.dcp and others not")
	case planned:
		err = x.addPlan(s, rank)
	default:
		err = x.addState(s, rank)
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	x.ranks++
	return nil
}

// Values is the file of values.
func (x *Index) Values() []byte { return x.values }

// Names is how many names there are.
func (x *Index) Names() int { return len(x.entries) }

const randomStates = "__rng__"

func (x *Index) addState(s *state, rank int) error {
	if err := wholeOptimizers(&s.tree); err != nil {
		return err
	}
	return s.leaves("", &s.tree, func(path string, v *node) error {
		if path == "" {
			return nil // nothing is tracked
		}
		if strings.HasPrefix(path, join("", named, randomStates)) {
			path = own(rank, path)
		}
		if err := x.add(s, rank, path, v); err != nil {
			return fmt.Errorf("%.200s: %w", key(path), err)
		}
		return nil
	})
}

// own is where a value stands that is one rank's alone.
func own(rank int, path string) string { return join("", named, fmt.Sprintf("rank-%d", rank)) + path }

// add takes in what a rank has under a path.
func (x *Index) add(s *state, rank int, path string, v *node) error {
	if r := s.tensor(v); r != nil {
		offsets, held := make([]int64, len(r.shape)), true
		shape := r.shape
		if r.shard != nil {
			var err error
			if offsets, held, err = r.shard.box(r.shape); err != nil {
				return err
			}
			shape = r.shard.shape
		}
		return x.addTensor(rank, path, tensorPart{dtype: r.dtype, like: r.like, shape: shape, offsets: offsets, held: held, row: r})
	}
	at := slice{rank: inValues, at: int64(len(x.values))}
	if !v.isDict() { // one that is not opened is empty
		b, err := s.encode(v)
		if err != nil {
			return err
		}
		at.n, at.sum = int64(len(b)), sum(b)
		if e := x.by[path]; e != nil && e.dtype == "" && e.value.sum == at.sum && e.value.n == at.n {
			at = e.value
		} else if x.values = append(x.values, b...); len(x.values) > MaxValues {
			return errValues
		}
	}
	return x.addValue(rank, path, at)
}

func sum(b []byte) (out [16]byte) {
	whole := sha256.Sum256(b)
	copy(out[:], whole[:])
	return out
}

// entry is what stands under a path; one that is new is made.
func (x *Index) entry(rank int, path string) (e *entry, isNew bool, err error) {
	if e = x.by[path]; e != nil {
		if e.last == rank {
			return nil, false, notNamed("two parts of the state have this name")
		}
		e.last = rank
		return e, false, nil
	}
	if x.parts++; x.parts > maxParts {
		return nil, false, notNamed("there are more than %d names and parts", maxParts)
	}
	if err := x.keep(2 * len(path)); err != nil { // and its key
		return nil, false, err
	}
	e = &entry{path: path, last: rank}
	x.by[path] = e
	x.entries = append(x.entries, e)
	return e, true, nil
}

func (x *Index) addValue(rank int, path string, at slice) error {
	e, isNew, err := x.entry(rank, path)
	if err != nil {
		return err
	}
	if isNew {
		e.value, e.ranks = at, []int32{int32(rank)}
		return nil
	}
	alike := e.dtype == "" && e.value.sum == at.sum && e.value.n == at.n
	if alike && !e.ownTold {
		e.ranks = append(e.ranks, int32(rank))
		return nil
	}
	if err := x.tellOwn(e); err != nil {
		return err
	}
	return x.addValue(rank, own(rank, path), at)
}

// tellOwn gives a value of several ranks that hold it each a name of its own, as another has come that is unlike.
func (x *Index) tellOwn(e *entry) error {
	ranks := e.ranks
	e.ranks, e.ownTold = nil, true
	for _, r := range ranks {
		if err := x.addValue(int(r), own(int(r), e.path), e.value); err != nil {
			return err
		}
	}
	return nil
}

// tensorPart is what a rank has of a tensor.
type tensorPart struct {
	dtype, like    string
	shape, offsets []int64
	held           bool // else the rank has nothing of it
	row            *row
}

func (x *Index) addTensor(rank int, path string, t tensorPart) error {
	e, isNew, err := x.entry(rank, path)
	if err != nil {
		return err
	}
	shape, err := x.shape(t.shape)
	if err != nil {
		return err
	}
	if isNew {
		e.dtype, e.like, e.shape = t.dtype, t.like, shape
	}
	if e.dtype != t.dtype || e.like != t.like || e.shape != shape {
		if e.dtype == "" {
			if err := x.tellOwn(e); err != nil {
				return err
			}
		}
		whole := t.row.shape
		return x.addTensor(rank, own(rank, path), tensorPart{dtype: t.dtype, shape: whole, offsets: make([]int64, len(whole)), held: true, row: t.row})
	}
	if !t.held {
		return nil
	}
	return x.addPart(e, rank, t)
}

// addPart takes in a part, unless another rank has had it.
func (x *Index) addPart(e *entry, rank int, t tensorPart) error {
	if product(t.row.shape) == 0 && len(e.parts) > 0 {
		return nil // nothing is in it
	}
	sizes, err := x.shape(t.row.shape)
	if err != nil {
		return err
	}
	p := part{at: t.row.at - t.row.prefix, n: t.row.prefix + t.row.n, rank: int32(rank), sizes: sizes}
	for i, n := range t.shape {
		p.begin = p.begin*n + t.offsets[i]
	}
	i, found := slices.BinarySearchFunc(e.parts, p.begin, func(p part, begin int64) int { return int(min(1, max(-1, p.begin-begin))) })
	if found {
		if e.parts[i].sizes != p.sizes {
			return notNamed("ranks hold parts of it that overlap")
		}
		return nil
	}
	if x.parts++; x.parts > maxParts || len(e.parts) >= maxPartsOfOne {
		return notNamed("there are more than %d names and parts, or %d of one tensor", maxParts, maxPartsOfOne)
	}
	e.parts = slices.Insert(e.parts, i, p)
	return nil
}

// shape is the number of a shape, the same for the same.
func (x *Index) shape(dims []int64) (int32, error) {
	var p pickler
	p.ints(dims)
	n, ok := x.shapes[string(p.b)]
	if !ok {
		if err := x.keep(2 * len(p.b)); err != nil {
			return 0, err
		}
		n = int32(len(x.dims))
		x.dims = append(x.dims, slices.Clone(dims))
		x.shapes[string(p.b)] = n
	}
	return n, nil
}

// keep counts bytes that are kept.
func (x *Index) keep(n int) error {
	if x.names += n; x.names > maxNames {
		return notNamed("its names and shapes have more than %d bytes", maxNames)
	}
	return nil
}

// Check says whether each tensor is whole and each name one thing's.
func (x *Index) Check() error {
	if x.ranks == 0 {
		return notNamed("there is no rank")
	}
	if x.table != nil {
		for _, fqn := range x.table.names {
			if x.by[x.table.path(fqn)] == nil {
				return notNamed("%.200s is named by the table, and no rank holds it", fqn)
			}
		}
	}
	keys := make(map[string]bool, len(x.entries))
	for _, e := range x.entries {
		k := key(e.path)
		if keys[k] {
			return notNamed("two parts of the state are both called %.200s", k)
		}
		keys[k] = true
		if e.dtype == "" {
			continue
		}
		have := int64(0)
		for _, p := range e.parts {
			have += product(x.dims[p.sizes])
		}
		if want := product(x.dims[e.shape]); have != want {
			return notNamed("%.200s: the ranks hold %d elements of a tensor of %d", k, have, want)
		}
		if x.table != nil && x.overlap(e) {
			return notNamed("%.200s: ranks hold parts of it that overlap, or too many to tell", k)
		}
	}
	return nil
}

// maxCompared bounds how many pairs of parts of one tensor are compared.
const maxCompared = 1 << 20

// overlap says whether parts of a tensor overlap. Shards of one layout do not; a planner may plan anything.
func (x *Index) overlap(e *entry) bool {
	type box struct{ from, sizes []int64 }
	var open []box // those that end behind where the newest begins in the first dimension; parts are in order of where they begin
	compared := 0
	for i := range e.parts {
		b := box{x.offsets(e, &e.parts[i]), x.dims[e.parts[i].sizes]}
		if len(b.from) == 0 {
			continue
		}
		open = slices.DeleteFunc(open, func(o box) bool { return o.from[0]+o.sizes[0] <= b.from[0] })
		for _, o := range open {
			if compared++; compared > maxCompared || meet(o.from, o.sizes, b.from, b.sizes) {
				return true
			}
		}
		open = append(open, b)
	}
	return false
}

func meet(a, sizeA, b, sizeB []int64) bool {
	for i := range a {
		if a[i]+sizeA[i] <= b[i] || b[i]+sizeB[i] <= a[i] {
			return false
		}
	}
	return true
}
