package stock

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

type kind uint8

const (
	null kind = iota
	boolean
	integer
	float
	text
	array // of JSON
	record
	dict
	ordered
	list
	tuple
	leaf
	object
)

// node is a value of JSON, or of a state's tree once it is typed.
type node struct {
	kind kind
	// n is the number of a leaf or an object, and 1 of true.
	n int64
	// s is a text, or a number as JSON has it.
	s string
	// kids are items; of a record, a dict and an ordered one keys and values in turn.
	kids []node
}

// scanner reads JSON that is known to be valid.
type scanner struct {
	b     []byte
	at    int
	nodes int // that are left of the bound
	open  []node
}

// close is what was opened since there were so many.
func (s *scanner) close(since int) []node {
	kids := slices.Clone(s.open[since:])
	s.open = s.open[:since]
	return kids
}

func newScanner(b []byte, what string) (*scanner, error) {
	if !json.Valid(b) {
		return nil, notNamed("its %s is no JSON", what)
	}
	return &scanner{b: b, nodes: maxNodes}, nil
}

func (s *scanner) space() byte {
	for s.at < len(s.b) && strings.IndexByte(" \t\r\n", s.b[s.at]) >= 0 {
		s.at++
	}
	return s.b[s.at]
}

// more says whether another item follows in an array or a record that was begun, and goes on to it, or behind its end.
func (s *scanner) more(end byte) bool {
	switch s.space() {
	case ',':
		s.at++
		s.space()
	case end:
		s.at++
		return false
	}
	return true
}

var errNodes = notNamed("it has more than %d values, or %d within each other", maxNodes, maxDepth)

func (s *scanner) value(depth int) (node, error) {
	if s.nodes--; s.nodes < 0 || depth > maxDepth {
		return node{}, errNodes
	}
	switch c := s.space(); c {
	case '{', '[':
		s.at++
		out, end := node{kind: record}, byte('}')
		if c == '[' {
			out.kind, end = array, ']'
		}
		since := len(s.open)
		for s.more(end) {
			kid, err := s.value(depth + 1)
			if err != nil {
				return node{}, err
			}
			s.open = append(s.open, kid)
			if c == '{' {
				s.space()
				s.at++ // the colon
				if kid, err = s.value(depth + 1); err != nil {
					return node{}, err
				}
				s.open = append(s.open, kid)
			}
		}
		out.kids = s.close(since)
		return out, nil
	case '"':
		return s.text()
	case 'n':
		s.at += len("null")
		return node{}, nil
	case 't':
		s.at += len("true")
		return node{kind: boolean, n: 1}, nil
	case 'f':
		s.at += len("false")
		return node{kind: boolean}, nil
	}
	return s.number(), nil
}

func (s *scanner) number() node {
	from := s.at
	for s.at < len(s.b) && strings.IndexByte("+-.eE0123456789", s.b[s.at]) >= 0 {
		s.at++
	}
	out := node{kind: integer, s: string(s.b[from:s.at])}
	if strings.ContainsAny(out.s, ".eE") {
		out.kind = float
	}
	return out
}

func (s *scanner) text() (node, error) {
	from, escaped := s.at, false
	for s.at++; s.b[s.at] != '"'; s.at++ {
		if s.b[s.at] == '\\' {
			escaped = true
			s.at++
		}
	}
	s.at++
	raw := s.b[from:s.at]
	out := node{kind: text, s: string(raw[1 : len(raw)-1])}
	if escaped {
		if err := json.Unmarshal(raw, &out.s); err != nil {
			return out, notNamed("its JSON has the text %.80s", raw)
		}
	}
	if !utf8.ValidString(out.s) || escaped && strings.Count(out.s, replacement) != replacements(string(raw)) {
		return out, notNamed("it has a text that is no Unicode: %.80q", out.s)
	}
	return out, nil
}

// replacement is what json makes of half a surrogate, and a character that texts have as well.
const replacement = "\uFFFD"

// replacements are how often a text of JSON has that character itself.
func replacements(raw string) int {
	n := strings.Count(raw, replacement)
	for at := 0; at < len(raw); at++ {
		if raw[at] != '\\' {
			continue
		}
		if len(raw) >= at+6 && strings.EqualFold(raw[at+1:at+6], "ufffd") {
			n++
		}
		at++
	}
	return n
}

// get is the value of a key of a record or dict; nil: it has none.
func (v *node) get(key string) *node {
	for i := 0; i+1 < len(v.kids); i += 2 {
		if v.kids[i].kind == text && v.kids[i].s == key {
			return &v.kids[i+1]
		}
	}
	return nil
}

// int64 is a number from 0 on.
func (v *node) int64() (int64, bool) {
	if v == nil || v.kind != integer {
		return 0, false
	}
	n, err := strconv.ParseInt(v.s, 10, 64)
	return n, err == nil && n >= 0
}

// numbers are those of an array or a list.
func (v *node) numbers() ([]int64, bool) {
	if v == nil || v.kind != array && v.kind != list {
		return nil, false
	}
	out := make([]int64, len(v.kids))
	for i := range v.kids {
		n, ok := v.kids[i].int64()
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

func (v *node) isDict() bool { return v.kind == dict || v.kind == ordered }

// tags are those of docs/formats/checkpoint.md.
var tags = map[string]kind{"d": dict, "o": ordered, "l": list, "t": tuple, "f": float, "T": leaf, "p": object}

// typed is a value of a state's tree.
func (s *scanner) typed(depth int) (node, error) {
	switch s.space() {
	case '[':
		return node{}, notNamed("its tree has a bare array")
	case '{':
	default:
		return s.value(depth)
	}
	if s.nodes--; s.nodes < 0 || depth > maxDepth {
		return node{}, errNodes
	}
	bad := notNamed("its tree has a tag that is not known here")
	if s.at++; !s.more('}') {
		return node{}, bad
	}
	tag, err := s.member()
	if err != nil {
		return node{}, err
	}
	out := node{kind: tags[tag]}
	switch out.kind {
	case null:
		return node{}, bad
	case float, leaf, object:
		err = s.scalar(&out)
	default:
		err = s.container(&out, depth)
	}
	if err == nil && s.more('}') {
		err = bad
	}
	return out, err
}

// member reads a key and goes on to its value.
func (s *scanner) member() (string, error) {
	s.space()
	key, err := s.text()
	s.space()
	s.at++ // the colon
	s.space()
	return key.s, err
}

// scalar reads what follows a tag that holds one value.
func (s *scanner) scalar(out *node) error {
	x, err := s.value(0)
	if err != nil {
		return err
	}
	if out.kind == float {
		if out.s = x.s; x.kind != text || x.s != "nan" && x.s != "inf" && x.s != "-inf" {
			return notNamed("its tree has a float that is none")
		}
		return nil
	}
	var ok bool
	if out.n, ok = x.int64(); !ok {
		return notNamed("its tree names part %.80q", x.s)
	}
	return nil
}

// container reads what follows a tag that holds others.
func (s *scanner) container(out *node, depth int) error {
	if s.space() != '[' {
		return notNamed("its tree has a container that is no array")
	}
	since := len(s.open)
	for s.at++; s.more(']'); {
		items := 1
		if out.isDict() {
			if items = 2; s.space() != '[' {
				return notNamed("its tree has a dict without keys")
			}
			s.at++
		}
		for range items {
			if items == 2 && !s.more(']') {
				return notNamed("its tree has a dict without values")
			}
			kid, err := s.typed(depth + 1)
			if err != nil {
				return err
			}
			s.open = append(s.open, kid)
		}
		if items == 2 && s.more(']') {
			return notNamed("its tree has a dict with more than keys and values")
		}
	}
	out.kids = s.close(since)
	return nil
}

// typedTree is that of a state: a value for each name.
func typedTree(b []byte) (node, error) {
	s, err := newScanner(b, "tree")
	if err != nil {
		return node{}, err
	}
	root := node{kind: dict}
	if s.space() != '{' {
		return node{}, notNamed("its tree is no record of names")
	}
	for s.at++; s.more('}'); {
		name, err := s.member()
		if err != nil {
			return node{}, err
		}
		v, err := s.typed(1)
		if err != nil {
			return node{}, err
		}
		root.kids = append(root.kids, node{kind: text, s: name}, v)
	}
	return root, nil
}
