package stock

import (
	"slices"
	"strconv"
	"strings"
)

// planName is the name that all stands under that a rank saved by holdfast.dcp.
const planName = "__dcp__"

// table is that of the whole checkpoint, without its chunks: the ranks say which they have.
type table struct {
	names   []string
	tensors map[string]tensorPart
	values  map[string]bool
	paths   map[string]string
}

// path is where a name stands in the state.
func (t *table) path(fqn string) string {
	if p, ok := t.paths[fqn]; ok {
		return p
	}
	return join("", named, fqn)
}

func readTable(raw []byte) (*table, error) {
	in, err := newScanner(raw, "table")
	if err != nil {
		return nil, err
	}
	t := &table{tensors: map[string]tensorPart{}, values: map[string]bool{}, paths: map[string]string{}}
	if in.space() != '{' {
		return nil, notNamed("its table is no record")
	}
	for in.at++; in.more('}'); {
		k, err := in.member()
		if err != nil {
			return nil, err
		}
		switch c := in.space(); {
		case k == "values" && c == '[':
			err = in.items(']', func(v *node) error {
				if v.kind != text {
					return notNamed("its table names a value that has no name")
				}
				t.values[v.s] = true
				return t.addName(v.s)
			})
		case k == "tensors" && c == '{':
			err = in.members(t.addTensor)
		case k == "paths" && c == '{':
			err = in.members(t.addPath)
		default:
			in.nodes = maxNodes
			_, err = in.value(0)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, t.check()
}

// addName takes in a name, of which a path can be made.
func (t *table) addName(fqn string) error {
	if strings.Contains(fqn, separator) {
		return notNamed("%.200q: a name that none can be", fqn)
	}
	t.names = append(t.names, fqn)
	return nil
}

// check says whether no two names are one.
func (t *table) check() error {
	seen := map[string]bool{}
	for _, fqn := range t.names {
		p := t.path(fqn)
		if seen[p] {
			return notNamed("%.200s: its table has two of this name or path", fqn)
		}
		seen[p] = true
	}
	return nil
}

// items visits those of an array, one at a time.
func (s *scanner) items(end byte, visit func(v *node) error) error {
	for s.at++; s.more(end); {
		s.nodes = maxNodes
		v, err := s.value(0)
		if err == nil {
			err = visit(&v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// members visits those of a record, one at a time.
func (s *scanner) members(visit func(key string, v *node) error) error {
	for s.at++; s.more('}'); {
		k, err := s.member()
		if err != nil {
			return err
		}
		s.nodes = maxNodes
		v, err := s.value(0)
		if err == nil {
			err = visit(k, &v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *table) addTensor(fqn string, v *node) error {
	if v.kind != array || len(v.kids) != 3 || dtypes[v.kids[0].s] == 0 {
		return notNamed("%.200s: its row of the table is not known here", fqn)
	}
	size, ok := v.kids[1].numbers()
	if !ok || len(size) > maxDims || product(size) < 0 {
		return notNamed("%.200s: its row of the table is not known here", fqn)
	}
	t.tensors[fqn] = tensorPart{dtype: v.kids[0].s, shape: size}
	return t.addName(fqn)
}

func (t *table) addPath(fqn string, v *node) error {
	path := ""
	for i := range v.kids {
		switch k := &v.kids[i]; {
		case k.kind == text && !strings.Contains(k.s, separator):
			path = join(path, named, k.s)
		case k.kind == integer:
			n, ok := k.int64()
			if !ok {
				return notNamed("%.200s: its path is not known here", fqn)
			}
			path = join(path, placed, strconv.FormatInt(n, 10))
		default:
			return notNamed("%.200s: its path is not known here", fqn)
		}
	}
	if v.kind != array || path == "" {
		return notNamed("%.200s: its path is not known here", fqn)
	}
	t.paths[fqn] = path
	return nil
}

// addPlan takes in what a rank's plan of a save held. It follows holdfast._planned.
func (x *Index) addPlan(s *state, rank int) error {
	bad := notNamed("what holdfast.dcp saved is not known here")
	plan := &s.tree.kids[1]
	version, ok := plan.get("v").int64()
	where, held := plan.get("table"), plan.get("held")
	if !ok || version != 1 || where == nil || where.kind != leaf || held == nil || held.kind != list {
		return bad
	}
	if rank == 0 {
		r, err := s.row(where)
		if err != nil {
			return err
		}
		raw, err := s.region(r.at, r.n, "table")
		if err != nil {
			return err
		}
		if x.table, err = readTable(raw); err != nil {
			return err
		}
	}
	for i := range held.kids {
		item := &held.kids[i]
		if item.kind != list || len(item.kids) != 3 || item.kids[0].kind != text || item.kids[2].kind != leaf {
			return bad
		}
		r, err := s.row(&item.kids[2])
		if err == nil {
			err = x.addItem(s, rank, item.kids[0].s, &item.kids[1], r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addItem takes in one item of a plan.
func (x *Index) addItem(s *state, rank int, fqn string, offsets *node, r *row) error {
	t, isTensor := x.table.tensors[fqn]
	path := x.table.path(fqn)
	switch {
	case isTensor:
		var ok bool
		if t.offsets, ok = offsets.numbers(); !ok || r.kind != "torch" || r.dtype != t.dtype || len(t.offsets) != len(t.shape) || len(r.shape) != len(t.shape) {
			return notNamed("%.200s: a part is not of what the table says", fqn)
		}
		for i, n := range t.shape {
			if t.offsets[i] > n || r.shape[i] > n-t.offsets[i] {
				return notNamed("%.200s: a part lies outside of it", fqn)
			}
		}
		t.row = r
		e := x.by[path]
		if e == nil {
			var err error
			if e, _, err = x.entry(rank, path); err != nil {
				return err
			}
			if e.shape, err = x.shape(t.shape); err != nil {
				return err
			}
			e.dtype = t.dtype
		}
		if slices.Contains(r.shape, 0) && !slices.Contains(t.shape, 0) {
			return nil // it has nothing of it
		}
		return x.addPart(e, rank, t)
	case x.table.values[fqn]:
		if r.kind != "bytes" || r.n > MaxValues {
			return notNamed("%.200s: what the rank holds of it is not known here, or has more than %d bytes", fqn, MaxValues)
		}
		b, err := s.read(r.at, r.n)
		if err != nil {
			return err
		}
		return x.addValue(rank, path, slice{rank: rank, at: r.at, n: r.n, sum: sum(b)})
	}
	return nil
}
