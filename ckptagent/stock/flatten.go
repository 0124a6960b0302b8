package stock

import (
	"strconv"
	"strings"
)

// A path is the names and places that lead to a value: each with what it is in front, and a separator behind.
const (
	named     = "n" // a dict's key
	placed    = "i" // a list's
	separator = "\x00"
)

func join(path, what, name string) string { return path + what + name + separator }

// steps are those of a path, each with what it is in front.
func steps(path string) []string {
	return strings.Split(strings.TrimSuffix(path, separator), separator)
}

// key is what a path is called: a checkpoint of torch's has it by that.
func key(path string) string {
	var b strings.Builder
	for i, s := range steps(path) {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s[1:])
	}
	return b.String()
}

// leaves visits all that has a key of its own, as torch's flatten_state_dict goes: through dicts, and through lists that have tensors or
// dicts in them. It follows holdfast._union.
func (s *state) leaves(path string, v *node, visit func(path string, v *node) error) error {
	switch {
	case v.isDict() && len(v.kids) > 0:
		for i := 0; i+1 < len(v.kids); i += 2 {
			name, err := v.kids[i].name()
			if err != nil {
				return err
			}
			if err := s.leaves(join(path, named, name), &v.kids[i+1], visit); err != nil {
				return err
			}
		}
		return nil
	case v.kind == list && s.opened(v):
		for i := range v.kids {
			if err := s.leaves(join(path, placed, strconv.Itoa(i)), &v.kids[i], visit); err != nil {
				return err
			}
		}
		return nil
	}
	return visit(path, v)
}

// opened says whether the items of a list have keys of their own.
func (s *state) opened(v *node) bool {
	for i := range v.kids {
		kid := &v.kids[i]
		if kid.isDict() || kid.kind == list && s.opened(kid) || s.tensor(kid) != nil {
			return true
		}
	}
	return false
}

// tensor is the row of a leaf that is one; nil: it is none.
func (s *state) tensor(v *node) *row {
	if v.kind != leaf {
		return nil
	}
	if r, err := s.row(v); err == nil && r.isTensor() {
		return r
	}
	return nil
}

// name is a dict's key as Python's str says it.
func (v *node) name() (string, error) {
	switch {
	case v.kind == text && !strings.Contains(v.s, separator):
		return v.s, nil
	case v.kind == integer:
		return v.s, nil
	case v.kind == boolean:
		return []string{"False", "True"}[v.n], nil
	case v.kind == null:
		return "None", nil
	case v.kind == float: // JSON has it as Python says it
		return v.s, nil
	}
	return "", notNamed("a dict has keys that are no text or number")
}
