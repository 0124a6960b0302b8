package figure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestLinesAreMediansInOrder(t *testing.T) {
	s := NewSet("b")
	s.Add("z", "x", "m", "s", 9, 8, 30)
	s.Add("a", "x", "m", "s", 1, 2)
	s.Add("z", "x", "m", "s", 10)
	s.Add("none", "x", "m", "s")
	var out bytes.Buffer
	if err := WriteLines(&out, s.Figures()); err != nil {
		t.Fatal(err)
	}
	want := `{"bench":"b","case":"z","system":"x","metric":"m","value":9.5,"unit":"s","n":4,"samples":[9,8,30,10]}
{"bench":"b","case":"a","system":"x","metric":"m","value":1.5,"unit":"s","n":2,"samples":[1,2]}
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if got := s.Cases(); len(got) != 2 || got[0] != "z" {
		t.Errorf("cases %v", got)
	}
	if _, ok := s.Median("none", "x", "m"); ok {
		t.Error("a median of nothing")
	}
}

func TestConcludeShowsWhatWasMissed(t *testing.T) {
	s := NewSet("b")
	s.Add("c", "x", "m", "s", 1, 3)
	s.Add("c", "y", "m", "s", 4)
	m := Key{"c", "x", "m"}
	rows := append(s.Figures(), s.Ratio(m, Key{"c", "y", "m"}, "m_vs_y", Times)...)
	for _, c := range []struct {
		common       Common
		goal         Goal
		began        time.Duration // before now
		broken       error
		word, missed string
	}{
		{goal: Goal{Key: m, Bound: 2}, word: "reached"},
		{goal: Goal{Key: m, Bound: 1.9}, word: "MISSED", missed: "c: m of x is 2, the goal is at most 1.9"},
		{goal: Goal{Key: m, Bound: 2, Least: true}, word: "reached"},
		{goal: Goal{Key: m, Bound: 2.1, Least: true}, word: "MISSED", missed: "c: m of x is 2, the goal is at least 2.1"},
		{goal: Goal{Key: m, Bound: 2.9, Each: true}, word: "MISSED", missed: "c: m of x is 3 at worst, the goal is at most 2.9"},
		{goal: Goal{Key: Key{"c", "x", "m_vs_y"}, Bound: 0.5}, word: "reached"},
		{goal: Goal{Key: Key{"d", "x", "m"}, Bound: 1}, word: "not measured"},
		{goal: Goal{Key: m, Bound: 1}, common: Common{Quick: true}, word: "not measured"},
		{goal: Goal{Key: m, Bound: 2}, began: 2 * time.Hour, word: "reached", missed: "the run took 7200 s, the goal is at most 3600"},
		{goal: Goal{Key: m, Bound: 2}, broken: errors.New("d: no figures"), word: "reached", missed: "d: no figures"},
	} {
		r := Result{Common: &c.common, Rows: rows, Goals: []Goal{c.goal}, Began: time.Now().Add(-c.began), Limit: time.Hour, Broken: c.broken}
		var out, progress bytes.Buffer
		err := r.Conclude(&out, &progress)
		if got := fmt.Sprint(err); c.missed == "" && err != nil || c.missed != "" && got != c.missed {
			t.Errorf("%+v: %v, want %q", c, err, c.missed)
		}
		if n := strings.Count(out.String(), "\n"); n != len(rows) {
			t.Errorf("%d lines", n)
		}
		if text := progress.String(); !strings.Contains(text, c.word+" ") || !strings.Contains(text, "1–3") || !strings.Contains(text, "the run took") {
			t.Errorf("the table is\n%s", text)
		}
	}
}

func TestRatiosAreOfMediansOfOneRun(t *testing.T) {
	s := NewSet("b")
	s.Add("c", "ours", "m", "s", 2, 1, 9)
	s.Add("c", "theirs", "m", "s", 4, 4, 4, 4, 4)
	s.Add("c", "early", "m", "s", -1)
	s.Add("c", "at once", "m", "s", 0)
	of := func(system string) Key { return Key{"c", system, "m"} }
	if got := s.Ratio(of("ours"), of("theirs"), "m_vs_theirs", Times); len(got) != 1 || got[0].Value != 0.5 || got[0].N != 3 ||
		got[0].Metric != "m_vs_theirs" || got[0].Unit != Times {
		t.Errorf("%+v", got)
	}
	for _, none := range [][2]string{{"ours", "early"}, {"ours", "at once"}, {"ours", "absent"}, {"early", "theirs"}, {"absent", "theirs"}} {
		if got := s.Ratio(of(none[0]), of(none[1]), "m_vs", Times); got != nil {
			t.Errorf("%s against %s: %+v", none[0], none[1], got)
		}
	}
}

// lines records what each call wrote.
type lines []string

func (l *lines) Write(b []byte) (int, error) {
	*l = append(*l, string(b))
	return len(b), nil
}

// TestEachCallWritesAWholeLine: a program that ends between two calls leaves whole lines.
func TestEachCallWritesAWholeLine(t *testing.T) {
	s := NewSet("b")
	s.Add("c", "x", "m", "s", 1)
	s.Add("c", "x", "of no time", "1/s", math.Inf(1))
	s.Add("c", "x", "of nothing", "1/s", math.NaN())
	s.Add("c", "x", "late", "s", -0.25)
	var out lines
	err := WriteLines(&out, s.Figures())
	if err == nil || !strings.Contains(err.Error(), "c, x, of no time: ") || !strings.Contains(err.Error(), "c, x, of nothing: ") {
		t.Errorf("figures that are no numbers: %v", err)
	}
	if len(out) != 2 || !strings.Contains(out[1], `"value":-0.25,`) {
		t.Fatalf("got %q", out)
	}
	for _, line := range out {
		if !json.Valid([]byte(line)) || strings.Index(line, "\n") != len(line)-1 {
			t.Errorf("one call wrote %q", line)
		}
	}
}

func TestForgottenCasesHaveNoRows(t *testing.T) {
	s := NewSet("b")
	for _, k := range []Key{{"c", "x", "m"}, {"c", "y", "m"}, {"c", "y", "n"}, {"d", "y", "m"}} {
		s.Add(k.Case, k.System, k.Metric, "s", 1, 2)
	}
	s.Forget("c", "y")
	if got := fmt.Sprint(s.Keys()); got != "[{c x m} {d y m}]" {
		t.Errorf("rows %s", got)
	}
	s.Add("c", "y", "m", "ms", 5)
	if got := fmt.Sprint(s.Samples("c", "y", "m")); got != "[5]" {
		t.Errorf("samples that were forgotten: %s", got)
	}
	s.Forget("c")
	if got := fmt.Sprint(s.Keys()); got != "[{d y m}]" || len(s.Figures()) != 1 {
		t.Errorf("rows %s", got)
	}
}
