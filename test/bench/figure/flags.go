package figure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Flags of these kinds refuse what would otherwise pass for a flag that was not given.

// Count is a flag for how often or how many, at least once; 0 where it was not given.
type Count int

// Set takes the flag's text.
func (c *Count) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("give a whole number, at least 1, or leave the flag out for its default")
	}
	*c = Count(n)
	return nil
}

// String is for the flag's help.
func (c *Count) String() string { return strconv.Itoa(int(*c)) }

// Type is for the flag's help.
func (c *Count) Type() string { return "count" }

// Or is the count, or the default where it was not given: quickly in a quick run, usually in others.
func (c *Count) Or(quick bool, quickly, usually int) int {
	switch {
	case *c > 0:
		return int(*c)
	case quick:
		return quickly
	}
	return usually
}

// Repeats is how often something is measured where --repeat is the flag.
func Repeats(asked Count, quick bool) int { return asked.Or(quick, 1, 3) }

// Names is a flag that chooses, with commas between them, some of what there is.
type Names struct{ of, given []string }

// OneOf chooses of these.
func OneOf(names ...string) Names { return Names{of: names} }

// Set takes the flag's text; given again, it adds to what was chosen.
func (n *Names) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(n.of, name) {
			return fmt.Errorf("there is no %q: name some of %s, with commas between them, or leave the flag out", name, strings.Join(n.of, ", "))
		}
		n.given = append(n.given, name)
	}
	return nil
}

// String is for the flag's help.
func (n *Names) String() string { return strings.Join(n.given, ",") }

// Type is for the flag's help.
func (n *Names) Type() string { return "names" }

// Given is whether the flag was.
func (n *Names) Given() bool { return len(n.given) > 0 }

// Include is whether a name was chosen, or the flag not given.
func (n *Names) Include(name string) bool { return !n.Given() || slices.Contains(n.given, name) }

// Chosen are those of all that were asked for, in their order; usual, where the flag was not given.
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

// Path is a flag for a file or a folder; empty where it was not given.
type Path string

// Set takes the flag's text.
func (p *Path) Set(text string) error {
	if text == "" {
		return errors.New("give a path, or leave the flag out")
	}
	*p = Path(text)
	return nil
}

// String is for the flag's help.
func (p *Path) String() string { return string(*p) }

// Type is for the flag's help.
func (p *Path) Type() string { return "path" }
