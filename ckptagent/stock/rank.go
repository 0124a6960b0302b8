package stock

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"regexp"
)

const (
	headBytes = 64
	headMagic = "HFSTATE1"
)

// dtypes are those that are named, with their size.
var dtypes = map[string]int64{
	"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4,
	"uint16": 2, "uint8": 1, "bool": 1, "complex128": 16, "complex64": 8, "complex32": 4, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
	"float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}

// storages are torch's classes of storages, as holdfast._prefix has them; tensors of other types are bytes that are seen as that type.
var storages = map[string]string{
	"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "int16": "Short",
	"int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}

var numpyType = regexp.MustCompile(`^[<>|=][biufc][0-9]{1,2}$`)

// row is a leaf of the state's layout.
type row struct {
	kind, dtype string
	shape       []int64
	// at and n are place and length of its bytes, prefix the length of what lies before them.
	at, n, prefix int64
	// shard says what it is part of, like which others that may be put together with it; of a dtensor.
	shard *layout
	like  string
}

func (r *row) isTensor() bool { return r.kind == "torch" || r.kind == "dtensor" }

// state is one rank's, without the bytes of its leaves.
type state struct {
	data    io.ReaderAt
	length  int64
	rows    []row
	tree    node
	objects []span
}

// readState reads what a rank's data says of itself.
func readState(data io.ReaderAt, length int64) (*state, error) {
	s := &state{data: data, length: length}
	head, err := s.read(0, headBytes)
	if err != nil {
		return nil, err
	}
	if string(head[:8]) != headMagic {
		return nil, notNamed("a rank's state was not written by the client")
	}
	var at, n [3]int64
	for i := range at {
		at[i], n[i] = int64(binary.LittleEndian.Uint64(head[8+16*i:])), int64(binary.LittleEndian.Uint64(head[16+16*i:]))
	}
	raw, err := s.region(at[0], n[0], "layout")
	if err == nil {
		err = s.layout(raw)
	}
	if err == nil {
		raw, err = s.region(at[1], n[1], "tree")
	}
	if err == nil {
		s.tree, err = typedTree(raw)
	}
	if err == nil {
		err = s.findObjects(at[2], n[2])
	}
	return s, err
}

func (s *state) region(at, n int64, what string) ([]byte, error) {
	if n > MaxRegion {
		return nil, notNamed("a rank's %s has %d bytes, more than %d", what, n, MaxRegion)
	}
	return s.read(at, n)
}

// read reads part of the data; what lies outside of it cannot be named.
func (s *state) read(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > s.length || n > s.length-at {
		return nil, notNamed("a rank's state points past its end")
	}
	b := make([]byte, n)
	if _, err := s.data.ReadAt(b, at); err != nil && n > 0 {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, notNamed("a rank's state is cut off")
		}
		return nil, err
	}
	return b, nil
}

func (s *state) findObjects(at, n int64) error {
	for end := at + n; n > 0 && at < end; {
		b, err := s.read(at, 8)
		if err != nil {
			return err
		}
		size := int64(binary.LittleEndian.Uint64(b))
		if size < 0 || size > MaxValues {
			return notNamed("an object of %d bytes is larger than %d", uint64(size), MaxValues)
		}
		if len(s.objects) >= maxObjects {
			return notNamed("it has more than %d objects", maxObjects)
		}
		s.objects = append(s.objects, span{at + 8, at + 8 + size})
		at += 8 + size
	}
	return nil
}

// layout reads the rows, one at a time.
func (s *state) layout(raw []byte) error {
	in, err := newScanner(raw, "layout")
	if err != nil {
		return err
	}
	if in.space() != '{' {
		return notNamed("its layout is no record")
	}
	var prefixes []int64
	for in.at++; in.more('}'); {
		key, err := in.member()
		if err != nil {
			return err
		}
		if key == "tensors" {
			if err := s.readRows(in); err != nil {
				return err
			}
			continue
		}
		in.nodes = maxNodes
		v, err := in.value(0)
		if err != nil {
			return err
		}
		switch n, ok := v.int64(); {
		case key == "v" && (!ok || n != 1):
			return notNamed("its layout has a version that is not known here")
		case key == "prefix":
			prefixes, _ = v.numbers()
		}
	}
	return s.checkRows(prefixes)
}

func (s *state) readRows(in *scanner) error {
	if in.space() != '[' {
		return notNamed("its layout has no rows")
	}
	s.rows = nil
	for in.at++; in.more(']'); {
		in.nodes = maxNodes
		from := in.at
		v, err := in.value(0)
		if err != nil {
			return err
		}
		r, err := parseRow(&v, in.b[from:in.at])
		if err != nil {
			return err
		}
		if s.rows = append(s.rows, r); len(s.rows) > maxParts {
			return notNamed("a rank has more than %d tensors", maxParts)
		}
	}
	return nil
}

func parseRow(v *node, raw []byte) (r row, err error) {
	bad := notNamed("a row of its layout is not known here: %.200s", raw)
	if v.kind != array || len(v.kids) != 6 || v.kids[0].kind != text || v.kids[1].kind != text {
		return r, bad
	}
	var ok [3]bool
	r.kind, r.dtype = v.kids[0].s, v.kids[1].s
	r.shape, ok[0] = v.kids[2].numbers()
	r.at, ok[1] = v.kids[3].int64()
	r.n, ok[2] = v.kids[4].int64()
	if !ok[0] || !ok[1] || !ok[2] || len(r.shape) > maxDims {
		return r, bad
	}
	size := int64(1)
	switch r.kind {
	case "torch", "dtensor":
		if size = dtypes[r.dtype]; size == 0 {
			return r, bad
		}
	case "numpy", "array", "bytes", "bytearray":
		size = r.n / max(product(r.shape), 1)
		if r.kind == "numpy" && !numpyType.MatchString(r.dtype) || r.kind == "array" && (len(r.dtype) != 1 || len(r.shape) != 1) {
			return r, bad
		}
	default:
		return r, bad
	}
	if n := product(r.shape); n < 0 || n > math.MaxInt64/max(size, 1) || n*size != r.n {
		return r, bad
	}
	if r.kind == "dtensor" {
		if r.shard, err = parseLayout(&v.kids[5]); err != nil {
			return r, err
		}
		if len(r.shard.shape) != len(r.shape) {
			return r, bad
		}
		r.like = likeness(&v.kids[5])
	}
	return r, nil
}

// likeness is what shards have in common that are put together.
func likeness(v *node) string {
	var p pickler
	for _, key := range []string{"shape", "mesh", "dims", "placements"} {
		if x := v.get(key); x != nil {
			p.json(x)
		}
	}
	return string(p.b)
}

// product is the number of elements; -1: more than there can be.
func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d == 0 {
			return 0
		}
		if d < 0 || n < 0 || n > math.MaxInt64/d {
			n = -1
			continue
		}
		n *= d
	}
	return n
}

func (s *state) checkRows(prefixes []int64) error {
	for i := range s.rows {
		r := &s.rows[i]
		if r.at > s.length || r.n > s.length-r.at {
			return notNamed("a tensor lies outside of a rank's state")
		}
		if !r.isTensor() {
			continue
		}
		if len(prefixes) != len(s.rows) || prefixes[i] == 0 {
			return notNamed("it was saved by a client that writes nothing before a tensor's bytes")
		}
		if r.prefix = prefixes[i]; r.prefix > r.at-headBytes {
			return notNamed("what lies before a tensor's bytes begins outside of a rank's state")
		}
	}
	return nil
}

// row is that of a leaf.
func (s *state) row(v *node) (*row, error) {
	if v.n >= int64(len(s.rows)) {
		return nil, notNamed("its tree names tensor %d of %d", v.n, len(s.rows))
	}
	return &s.rows[v.n], nil
}

// object is what was pickled, which nothing here reads.
func (s *state) object(v *node) ([]byte, error) {
	if v.n >= int64(len(s.objects)) {
		return nil, notNamed("its tree names object %d of %d", v.n, len(s.objects))
	}
	o := s.objects[v.n]
	return s.read(o.from, o.to-o.from)
}
