package stock

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// made is an object that a pickle makes: what is called, with what, and the state that is set on it.
type made struct {
	class string
	args  any
	state any
}

type tupleOf []any

type mark struct{}

// reader reads pickles of the operations that are written here, and no others; classes are those that it met.
type reader struct {
	in      *bytes.Reader
	stack   []any
	memo    map[uint32]any
	classes map[string]bool
}

// unpickle reads one pickle.
func (r *reader) unpickle() (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	r.stack, r.memo = nil, map[uint32]any{}
	if r.classes == nil {
		r.classes = map[string]bool{}
	}
	for {
		op, err := r.in.ReadByte()
		if err != nil {
			return nil, err
		}
		if op == '.' {
			if len(r.stack) != 1 {
				return nil, fmt.Errorf("%d values are left", len(r.stack))
			}
			return r.stack[0], nil
		}
		r.do(op)
	}
}

func (r *reader) take(n int) []byte {
	b := make([]byte, n)
	if k, _ := r.in.Read(b); k != n {
		panic("it is cut off")
	}
	return b
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }

func (r *reader) line() string {
	var b strings.Builder
	for c := r.take(1); c[0] != '\n'; c = r.take(1) {
		b.Write(c)
	}
	return b.String()
}

func (r *reader) push(v any) { r.stack = append(r.stack, v) }

func (r *reader) pop() any {
	v := r.stack[len(r.stack)-1]
	r.stack = r.stack[:len(r.stack)-1]
	return v
}

func (r *reader) toMark() []any {
	for i := len(r.stack) - 1; ; i-- {
		if _, ok := r.stack[i].(mark); ok {
			items := append([]any(nil), r.stack[i+1:]...)
			r.stack = r.stack[:i]
			return items
		}
	}
}

func (r *reader) do(op byte) {
	switch op {
	case 0x80:
		if r.take(1)[0] != 2 {
			panic("another protocol")
		}
	case 'N':
		r.push(nil)
	case 0x88:
		r.push(true)
	case 0x89:
		r.push(false)
	case 'K':
		r.push(int64(r.take(1)[0]))
	case 'M':
		r.push(int64(binary.LittleEndian.Uint16(r.take(2))))
	case 'J':
		r.push(int64(int32(r.u32())))
	case 0x8a:
		b := append(r.take(int(r.take(1)[0])), 0, 0, 0, 0, 0, 0, 0, 0)
		r.push(int64(binary.LittleEndian.Uint64(b)))
	case 0x8b:
		r.push(r.take(int(r.u32())))
	case 'G':
		r.push(math.Float64frombits(binary.BigEndian.Uint64(r.take(8))))
	case 'X':
		r.push(string(r.take(int(r.u32()))))
	case 'B':
		r.push(r.take(int(r.u32())))
	case 'c':
		name := r.line() + "." + r.line()
		r.classes[name] = true
		r.push(name)
	case 'r':
		r.memo[r.u32()] = r.stack[len(r.stack)-1]
	case 'j':
		v, ok := r.memo[r.u32()]
		if !ok {
			panic("nothing is remembered there")
		}
		r.push(v)
	default:
		r.put(op)
	}
}

// index is a MetadataIndex that was read.
type index struct{ fqn, offset string }

// keyOf is what a dict that was read has a value under.
func keyOf(v any) any {
	m, ok := v.(*made)
	if !ok {
		return fmt.Sprint(v)
	}
	fields := *m.state.(*map[any]any)
	return index{fields["fqn"].(string), show(fields["offset"])}
}

// put does what puts values together.
func (r *reader) put(op byte) {
	switch op {
	case '(':
		r.push(mark{})
	case ')':
		r.push(tupleOf{})
	case 't':
		r.push(tupleOf(r.toMark()))
	case 0x85:
		r.push(tupleOf{r.pop()})
	case ']':
		r.push(&[]any{})
	case 'e':
		items := r.toMark()
		l := r.stack[len(r.stack)-1].(*[]any)
		*l = append(*l, items...)
	case '}':
		r.push(&map[any]any{})
	case 'u':
		items := r.toMark()
		for i := 0; i < len(items); i += 2 {
			switch d := r.stack[len(r.stack)-1].(type) {
			case *map[any]any:
				(*d)[keyOf(items[i])] = items[i+1]
			case *made: // an OrderedDict
			}
		}
	case 'R', 0x81:
		args := r.pop()
		r.push(&made{class: r.pop().(string), args: args})
	case 'b':
		state := r.pop()
		r.stack[len(r.stack)-1].(*made).state = state
	case 'Q':
		r.pop()
		r.push(&made{class: "storage"})
	default:
		panic(fmt.Sprintf("operation %q", op))
	}
}
