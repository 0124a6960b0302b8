package ras

import (
	"bufio"
	"fmt"
	"strconv"
)

const (
	// mostText is the most bytes of a name, a text or a number, mostDepth the deepest nesting.
	mostText  = 128
	mostDepth = 16
)

// The kinds of tokens beside the brackets.
const (
	text = '"'
	word = 'w' // a number, true, false or null
)

// scanner reads JSON in which commas and colons may be missing.
type scanner struct {
	from *bufio.Reader
	// kind and value are the next token, once it was peeked at; kind 0: it was not.
	kind  byte
	value []byte
	room  [mostText]byte
	depth int
}

// peek returns the kind of the next token.
func (s *scanner) peek() (byte, error) {
	for s.kind == 0 {
		b, err := s.from.ReadByte()
		switch {
		case err != nil:
			return 0, err
		case b == ' ', b == '\n', b == '\r', b == '\t', b == ',', b == ':':
		case b == '{', b == '}', b == '[', b == ']':
			s.kind, s.value = b, nil
		case b == text:
			if err := s.readText(); err != nil {
				return 0, err
			}
		case inWord(b):
			if err := s.readWord(b); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("byte %q begins no value", b)
		}
	}
	return s.kind, nil
}

func inWord(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '-' || b == '+' || b == '.'
}

func (s *scanner) readText() error {
	s.kind, s.value = text, s.room[:0]
	for {
		b, err := s.from.ReadByte()
		if err == nil && b == '\\' {
			b, err = s.from.ReadByte() // no name that is looked for has an escape
		} else if b == text {
			return nil
		}
		if err != nil {
			return err
		}
		if len(s.value) == mostText {
			return fmt.Errorf("a text of more than %d bytes", mostText)
		}
		s.value = append(s.value, b)
	}
}

func (s *scanner) readWord(b byte) (err error) {
	s.kind, s.value = word, s.room[:0]
	for ; err == nil && inWord(b); b, err = s.from.ReadByte() {
		if len(s.value) == mostText {
			return fmt.Errorf("a number of more than %d bytes", mostText)
		}
		s.value = append(s.value, b)
	}
	if err == nil {
		err = s.from.UnreadByte()
	}
	return err
}

// take reads a token of that kind. Its value is valid until the next call.
func (s *scanner) take(kind byte) ([]byte, error) {
	got, err := s.peek()
	if err != nil {
		return nil, err
	}
	if got != kind {
		return nil, fmt.Errorf("%q where %q was expected", got, kind)
	}
	s.kind = 0
	return s.value, nil
}

func (s *scanner) text() (string, error) {
	raw, err := s.take(text)
	return string(raw), err
}

func (s *scanner) number() (int64, error) {
	raw, err := s.take(word)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(raw), 10, 64)
}

func (s *scanner) truth() (bool, error) {
	raw, err := s.take(word)
	if err != nil {
		return false, err
	}
	return strconv.ParseBool(string(raw))
}

// nested reads what is between two brackets: item reads each value.
func (s *scanner) nested(begin, end byte, item func() error) error {
	if _, err := s.take(begin); err != nil {
		return err
	}
	if s.depth++; s.depth > mostDepth {
		return fmt.Errorf("more than %d values in each other", mostDepth)
	}
	for {
		kind, err := s.peek()
		if err != nil {
			return err
		}
		if kind == end {
			s.kind, s.depth = 0, s.depth-1
			return nil
		}
		if err := item(); err != nil {
			return err
		}
	}
}

// list reads a list whose values item reads.
func (s *scanner) list(item func() error) error { return s.nested('[', ']', item) }

// object reads an object; field reads the value of a name, or skips it.
func (s *scanner) object(field func(name string) error) error {
	return s.nested('{', '}', func() error {
		name, err := s.text()
		if err != nil {
			return err
		}
		return field(name)
	})
}

// skip reads a value that is not used.
func (s *scanner) skip() error {
	kind, err := s.peek()
	if err != nil {
		return err
	}
	switch kind {
	case '{':
		return s.object(func(string) error { return s.skip() })
	case '[':
		return s.list(s.skip)
	case text, word:
		s.kind = 0
		return nil
	}
	return fmt.Errorf("%q where a value was expected", kind)
}
