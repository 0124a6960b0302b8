package figure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Flags of these kinds refuse a value that would otherwise mean a missing flag.

// Count is a flag for a number of times, at least 1; 0: not given.
type Count int

// Set parses the flag's text.
func (c *Count) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("give a whole number, at least 1, or leave the flag out for its default")
	}
	*c = Count(n)
	return nil
}

// String serves the flag's help.
func (c *Count) String() string { return strconv.Itoa(int(*c)) }

// Type serves the flag's help.
func (c *Count) Type() string { return "count" }

// Or returns the count, or if it was not given a default: quickly in a quick run, usually in others.
func (c *Count) Or(quick bool, quickly, usually int) int {
	switch {
	case *c > 0:
		return int(*c)
	case quick:
		return quickly
	}
	return usually
}

// Repeats is the number of repetitions, where --repeat is the flag.
func Repeats(asked Count, quick bool) int { return asked.Or(quick, 1, 3) }

// Names is a flag that selects some of the known names, separated by commas.
type Names struct{ of, given []string }

// OneOf returns a flag that selects among these names.
func OneOf(names ...string) Names { return Names{of: names} }

// Set parses the flag's text; a second flag adds to the selection.
func (n *Names) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(n.of, name) {
			return fmt.Errorf("there is no %q: name some of %s, with commas between them, or leave the flag out", name, strings.Join(n.of, ", "))
		}
		n.given = append(n.given, name)
	}
	return nil
}

// String serves the flag's help.
func (n *Names) String() string { return strings.Join(n.given, ",") }

// Type serves the flag's help.
func (n *Names) Type() string { return "names" }

// Given reports whether the flag was given.
func (n *Names) Given() bool { return len(n.given) > 0 }

// Include reports whether a name was selected, or the flag not given.
func (n *Names) Include(name string) bool { return !n.Given() || slices.Contains(n.given, name) }

// Chosen returns the selected elements of all, in their order; usual, if the flag was not given.
func Chosen[T any](usual, all []T, name func(T) string, want Names) []T {
	if !want.Given() {
		return usual
	}
	var out []T
	for _, v := range all {
		if want.Include(name(v)) {
			out = append(out, v)
		}
	}
	return out
}

// Path is a flag for a file or a folder; "": not given.
type Path string

// Set parses the flag's text.
func (p *Path) Set(text string) error {
	if text == "" {
		return errors.New("give a path, or leave the flag out")
	}
	*p = Path(text)
	return nil
}

// String serves the flag's help.
func (p *Path) String() string { return string(*p) }

// Type serves the flag's help.
func (p *Path) Type() string { return "path" }
