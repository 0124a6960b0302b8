package figure

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// Common are the options of all benchmarks.
type Common struct {
	// Quick asks for a small run.
	Quick bool
	// Record is the file to record the run in.
	Record Path
	// Source is the root of the source tree as given; "": see Root.
	Source Path

	header Header
}

// AddFlags defines the flags; quick describes a small run.
func (c *Common) AddFlags(f *pflag.FlagSet, quick string) {
	f.BoolVar(&c.Quick, "quick", false, quick+": shows that everything works, not how fast it is")
	f.Var(&c.Record, "record", "a file to record the run in, with machine and commit in its first line")
	f.Var(&c.Source, "source", "root of the source tree, with its binaries built (default .)")
}

// Root is the root of the source tree; default: the working directory.
func (c *Common) Root() string { return cmp.Or(string(c.Source), ".") }

// Begin refuses options without effect and a file that cannot be written. Call it before anything is started.
func (c *Common) Begin(bench string) error {
	if c.Record != "" && c.Quick {
		return errors.New("--record: figures of a --quick run are not worth recording: leave one of them out")
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
		_ = os.Remove(out.Name()) // it was created just now, and a run without figures must leave no file
	}
	return out.Close()
}

// keep writes the run to its file, if one is given. A run without figures leaves the file unchanged.
func (c *Common) keep(rows []Figure, seconds float64, missed []string, broken error) error {
	if c.Record == "" || len(rows) == 0 {
		return nil
	}
	c.header.Seconds, c.header.Missed = float64(int(seconds)), missed
	if broken != nil {
		c.header.Broken, _, _ = strings.Cut(broken.Error(), "; seen last: ") // what was seen is in the run's own output
	}
	text, err := Run{c.header, rows}.Bytes()
	if err != nil {
		return fmt.Errorf("--record: %w", err)
	}
	return os.WriteFile(string(c.Record), text, 0o644)
}
