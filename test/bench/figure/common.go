package figure

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// Common are the options of all benchmarks.
type Common struct {
	// Quick is a small run.
	Quick bool
	// Check makes an error of a missed goal, of a run that took too long, and of a ratio that is worse than the recorded one.
	Check bool
	// Record is a file that the run is kept in.
	Record Path
	// Source is the root of the source tree as it was given; empty where it was not, for which Root has the default.
	Source Path

	bench    string
	recorded Run
	header   Header
}

// AddFlags defines them; quick says what a small run is.
func (c *Common) AddFlags(f *pflag.FlagSet, quick string) {
	f.BoolVar(&c.Quick, "quick", false, quick+": shows that everything works, not how fast it is")
	f.BoolVar(&c.Check, "check", false, fmt.Sprintf("fail when a goal is missed, the run takes too long, or a ratio is more than %g times worse than in docs/benchmarks/", worseBy))
	f.Var(&c.Record, "record", "a file that the run is kept in, with machine and commit in its first line")
	f.Var(&c.Source, "source", "root of the source tree, with its binaries built (default .)")
}

// Root is the root of the source tree: the working directory where none was given.
func (c *Common) Root() string { return cmp.Or(string(c.Source), ".") }

// Begin refuses what would do nothing and reads what the run is to be compared with. It comes before anything is started.
func (c *Common) Begin(bench string) error {
	c.bench = bench
	switch {
	case c.Check && c.Quick:
		return errors.New("--check: figures of a --quick run are compared with nothing: leave one of them out")
	case c.Record != "" && c.Quick:
		return errors.New("--record: figures of a --quick run are not worth keeping: leave one of them out")
	case c.Check && c.Record != "":
		return errors.New("--record: a run is compared with the recorded one, or becomes it: leave out --record or --check")
	}
	if c.Check {
		file := RecordedIn(c.Root(), bench)
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--check: %w: make such a file by --record=%s", err, file)
		}
		if c.recorded, err = ParseRun(bench, text); err != nil {
			return fmt.Errorf("--check: %s: %w", file, err)
		}
	}
	if c.Record == "" {
		return nil
	}
	var err error
	if c.header, err = headerOf(c.Root(), bench); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(string(c.Record)), 0o755); err != nil {
		return fmt.Errorf("--record: %w: give a file that can be written", err)
	}
	out, err := os.OpenFile(string(c.Record), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--record: %w: give a file that can be written", err)
	}
	if info, err := out.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		_ = os.Remove(out.Name()) // it was made just now, and a run without figures is to leave none
	}
	return out.Close()
}

// keep writes the run into its file, where one is wanted. A run without figures leaves the file as it was.
func (c *Common) keep(rows []Figure, seconds float64, missed []string, broken error) error {
	if c.Record == "" || len(rows) == 0 {
		return nil
	}
	c.header.Seconds, c.header.Missed = float64(int(seconds)), missed
	if broken != nil {
		c.header.Broken = broken.Error()
	}
	text, err := Run{c.header, rows}.Bytes()
	if err != nil {
		return fmt.Errorf("--record: %w", err)
	}
	return os.WriteFile(string(c.Record), text, 0o644)
}
