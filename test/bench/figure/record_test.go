package figure

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// begun returns a run's options after some arguments, in a source tree with a recorded run of benchmark b.
func begun(t *testing.T, args ...string) (*Common, error) {
	t.Helper()
	var c Common
	f := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	c.AddFlags(f, "few")
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &c, c.Begin("b")
}

func recorded(t *testing.T, source, text string) {
	t.Helper()
	file := RecordedIn(source, "b")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const head = `{"recorded":"b","command":"b","commit":"abc","date":"2026-01-02","machine":"2 cores","load":"0 0 0","seconds":1}` + "\n"

// TestARunIsKept: a recorded run is read again with its rows and missed goals.
func TestARunIsKept(t *testing.T) {
	s := NewSet("b")
	s.Add("c", "ours", "m", "s", 1, 2, 3)
	file := filepath.Join(t.TempDir(), "b.jsonl")
	goals := []Goal{{Key: Key{"c", "ours", "m"}, Bound: 1}}
	c := &Common{Record: Path(file), header: Header{Recorded: "b", Commit: "abc"}}
	err := Result{Common: c, Rows: s.Figures(), Goals: goals, Began: time.Now()}.Conclude(io.Discard, io.Discard)
	text, readErr := os.ReadFile(file)
	if err == nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	kept, err := ParseRun("b", text)
	if err != nil || kept.Commit != "abc" || len(kept.Rows) != 1 || len(kept.Rows[0].Samples) != 3 || len(kept.Missed) != 1 {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

// TestARunWithoutFiguresIsNotKept: a run that is interrupted before its first figure leaves the file unchanged.
func TestARunWithoutFiguresIsNotKept(t *testing.T) {
	const before = "an earlier run"
	source := t.TempDir()
	recorded(t, source, before)
	c := &Common{Record: Path(RecordedIn(source, "b")), header: Header{Recorded: "b"}}
	if err := (Result{Common: c, Began: time.Now(), Broken: io.ErrUnexpectedEOF}).Conclude(io.Discard, io.Discard); err == nil {
		t.Error("a broken run is none")
	}
	if text, err := os.ReadFile(string(c.Record)); err != nil || string(text) != before {
		t.Errorf("%q, %v", text, err)
	}
}

func TestOptionsThatDoNothingAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--record=r", "--quick"}, "--record: figures of a --quick run"},
		{[]string{"--record=r"}, "measure in a git checkout"},
	} {
		if _, err := begun(t, append(c.args, "--source="+t.TempDir())...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestRecordedRunsAreReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `a run of "", not of "b"`,
		head:                                 "there is no figure after the header",
		head + `{"bench":"other","value":1}`: `line 2: a figure of "other", not of "b"`,
		head + `{"bench":"b","valeu":1}`:     `line 2: json: unknown field "valeu"`,
		strings.Replace(head, `"recorded":"b"`, `"recorded":"o"`, 1) + `{"bench":"b"}`: `a run of "o", not of "b"`,
		`{"bench":"b"}`: `line 1: json: unknown field "bench"`,
	} {
		if _, err := ParseRun("b", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestMachineInAFewWords(t *testing.T) {
	got := machine("processor\t: 0\nmodel name\t: Some Chip 3 @ 2 GHz\n", "MemTotal:       25165824 kB\n", "ID=debian\nPRETTY_NAME=\"Debian 12\"\n", 2)
	if want := "2 cores of Some Chip 3 @ 2 GHz, 24 GiB, Debian 12"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := machine("", "", "", 4); got != "4 cores" {
		t.Errorf("where nothing is known: %q", got)
	}
	if got := load("0.11 0.22 0.33 1/99 123\n"); got != "0.11 0.22 0.33" {
		t.Errorf("load %q", got)
	}
}
