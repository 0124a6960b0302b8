package figure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// given is a command's flags after some arguments.
type given struct {
	repeat Count
	names  Names
	path   Path
}

func parse(args ...string) (given, error) {
	g := given{names: OneOf("raw", "plain", "holdfast")}
	cmd := &cobra.Command{Use: "bench", RunE: func(*cobra.Command, []string) error { return nil }}
	cmd.Flags().Var(&g.repeat, "repeat", "")
	cmd.Flags().Var(&g.names, "systems", "")
	cmd.Flags().Var(&g.path, "profile", "")
	cmd.SetArgs(append([]string{}, args...)) // nil would mean the arguments of the test itself
	return g, Execute(context.Background(), cmd)
}

// TestNothingPassesForNotGiven: an invalid count, name or path is refused, not treated as a missing flag.
func TestNothingPassesForNotGiven(t *testing.T) {
	for _, c := range []struct{ flag, remedy string }{
		{"--repeat=0", "at least 1"}, {"--repeat=-1", "at least 1"}, {"--repeat=", "at least 1"}, {"--repeat=3x", "a whole number"}, {"--repeat=1.5", "a whole number"},
		{"--repeat=99999999999999999999", "a whole number"},
		{"--systems=", "name some of raw, plain, holdfast"}, {"--systems=yarn", `there is no "yarn": name some of raw, plain, holdfast`},
		{"--systems=raw,", `there is no ""`}, {"--systems=raw,Plain", `there is no "Plain"`},
		{"--profile=", "give a path, or leave the flag out"},
	} {
		name, _, _ := strings.Cut(c.flag, "=")
		if _, err := parse(c.flag); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.remedy) ||
			!strings.Contains(err.Error(), "leave the flag out") {
			t.Errorf("%s: %v, want %q of %s", c.flag, err, c.remedy, name)
		}
	}
}

func TestFlagsAct(t *testing.T) {
	all, itself := []string{"raw", "plain", "holdfast"}, func(s string) string { return s }
	for _, c := range []struct {
		args          []string
		usual, quick  int
		systems, path string
	}{
		{nil, 3, 1, "[raw]", ""},
		{[]string{"--repeat=1", "--systems=holdfast,raw"}, 1, 1, "[raw holdfast]", ""},
		{[]string{"--repeat", "7", "--systems=holdfast", "--systems=plain", "--profile=p"}, 7, 7, "[plain holdfast]", "p"},
	} {
		g, err := parse(c.args...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if usual, quick := Repeats(g.repeat, false), Repeats(g.repeat, true); usual != c.usual || quick != c.quick {
			t.Errorf("%q: %d repetitions, %d of a quick run", c.args, usual, quick)
		}
		if got := fmt.Sprint(Chosen(all[:1], all, itself, g.names)); got != c.systems || string(g.path) != c.path {
			t.Errorf("%q: %s, path %q", c.args, got, g.path)
		}
		if got := g.names.Include("plain"); got != (c.args == nil ||
			slices.ContainsFunc(c.args, func(a string) bool { return strings.HasSuffix(a, "plain") })) {
			t.Errorf("%q: plain %t", c.args, got)
		}
	}
}
