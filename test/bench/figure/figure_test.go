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
	rows := append(s.Figures(), s.Figure(Key{"c", "x", "m_vs_y"}, 0.5, "x", 1))
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{Common: &Common{}}, ""},
		{Result{Common: &Common{Check: true}}, ""},
		{Result{Common: &Common{}, Verdicts: Verdicts{Missed: []string{"m is 2"}}}, ""},
		{Result{Common: &Common{Check: true}, Verdicts: Verdicts{Missed: []string{"m is 2"}}}, "m is 2"},
		{Result{Common: &Common{Check: true}, Began: time.Now().Add(-2 * time.Hour)}, "the run took 7200 s, the goal is at most 3600"},
		{Result{Common: &Common{}, Broken: errors.New("d: no figures")}, "d: no figures"},
	} {
		if c.r.Began.IsZero() {
			c.r.Began = time.Now()
		}
		c.r.Rows, c.r.Reached, c.r.Unmeasured, c.r.Limit = rows, []string{"n is 1"}, []string{"o: at most 4"}, time.Hour
		var out, progress bytes.Buffer
		err := s.Conclude(&out, &progress, c.r)
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && got != c.want {
			t.Errorf("%+v: %v, want %q", c.r, err, c.want)
		}
		if n := strings.Count(out.String(), "\n"); n != 2 {
			t.Errorf("%d lines", n)
		}
		text := progress.String()
		if !strings.Contains(text, "reached  n is 1") || !strings.Contains(text, "not measured  o: at most 4") ||
			strings.Contains(text, "MISSED   m is 2") != (c.r.Missed != nil) ||
			!strings.Contains(text, "1–3") ||
			!strings.Contains(text, "the run took") {
			t.Errorf("the table is\n%s", text)
		}
	}
}

// lines keeps what each call wrote.
type lines []string

func (l *lines) Write(b []byte) (int, error) {
	*l = append(*l, string(b))
	return len(b), nil
}

// Whatever ends the program between two calls leaves whole lines.
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
