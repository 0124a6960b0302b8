package figure

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// begun is a run's options after some arguments, in a source tree with a recorded run of benchmark b.
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

// What a run keeps is what the next one is compared with.
func TestRecordedRunIsComparedWith(t *testing.T) {
	source := t.TempDir()
	s := NewSet("b")
	s.Add("c", "ours", "m", "s", 1, 2, 3)
	s.Add("c", "theirs", "m", "s", 4)
	rows := append(s.Figures(), s.Ratio("c", "m", "ours", "theirs", "m_vs_theirs", Times)...)
	recorded(t, source, "")
	c := &Common{bench: "b", Record: Path(RecordedIn(source, "b")), header: Header{Recorded: "b", Commit: "abc"}}
	missed := Verdicts{Reached: []string{"c: m is 2"}, Missed: []string{"c: m is 4"}}
	if err := s.Conclude(io.Discard, io.Discard, Result{Common: c, Rows: rows, Verdicts: missed, Began: time.Now()}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(RecordedIn(source, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := ParseRun("b", text); err != nil || !slices.Equal(kept.Missed, missed.Missed) {
		t.Errorf("the goals that were missed are kept as %q, %v", kept.Missed, err)
	}
	for _, now := range []struct {
		value float64
		want  string
	}{{2, ""}, {2.9, ""}, {3.1, "c: m_vs_theirs of ours is 0.775, recorded is 0.5: at most 0.75"}} {
		s := NewSet("b")
		s.Add("c", "ours", "m", "s", now.value)
		s.Add("c", "theirs", "m", "s", 4)
		c, err := begun(t, "--check", "--source="+source)
		if err != nil {
			t.Fatal(err)
		}
		var progress bytes.Buffer
		err = s.Conclude(io.Discard, &progress, Result{Common: c, Rows: s.Ratio("c", "m", "ours", "theirs", "m_vs_theirs", Times), Began: time.Now()})
		if now.want == "" && err != nil || now.want != "" && (err == nil || err.Error() != now.want) || !strings.Contains(progress.String(), "Against the recorded run of commit abc") {
			t.Errorf("%g: %v, want %q\n%s", now.value, err, now.want, &progress)
		}
	}
}

// A run that is broken off before its first figure leaves the file as it was.
func TestARunWithoutFiguresIsNotKept(t *testing.T) {
	const before = "an earlier run"
	source := t.TempDir()
	recorded(t, source, before)
	c := &Common{bench: "b", Record: Path(RecordedIn(source, "b")), header: Header{Recorded: "b"}}
	if err := NewSet("b").Conclude(io.Discard, io.Discard, Result{Common: c, Began: time.Now(), Broken: io.ErrUnexpectedEOF}); err == nil {
		t.Error("a broken run is none")
	}
	if text, err := os.ReadFile(string(c.Record)); err != nil || string(text) != before {
		t.Errorf("%q, %v", text, err)
	}
}

func TestOptionsThatDoNothingAreRefused(t *testing.T) {
	source := t.TempDir()
	for _, c := range []struct {
		args []string
		text string // of the recorded run; empty: there is none
		want string
	}{
		{[]string{"--check", "--quick"}, "", "--check: figures of a --quick run are compared with nothing"},
		{[]string{"--record=r", "--quick"}, "", "--record: figures of a --quick run"},
		{[]string{"--record=r", "--check"}, "", "leave out --record or --check"},
		{[]string{"--record=r"}, "", "measure in a git checkout"},
		{[]string{"--check"}, "", "b.jsonl: no such file or directory: make such a file by --record="},
		{[]string{"--check"}, head, "there is no figure after the header"},
		{[]string{"--check"}, head + `{"bench":"other","value":1}`, `line 2: a figure of "other", not of "b"`},
		{[]string{"--check"}, head + `{"bench":"b","valeu":1}`, `line 2: json: unknown field "valeu"`},
		{[]string{"--check"}, strings.Replace(head, `"recorded":"b"`, `"recorded":"o"`, 1) + `{"bench":"b"}`, `a run of "o", not of "b"`},
		{[]string{"--check"}, `{"bench":"b"}`, `line 1: json: unknown field "bench"`},
	} {
		if err := os.RemoveAll(filepath.Join(source, "docs")); err != nil {
			t.Fatal(err)
		}
		if c.text != "" {
			recorded(t, source, c.text)
		}
		if _, err := begun(t, append(c.args, "--source="+source)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %q: %v, want %q", c.args, c.text, err, c.want)
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
