package figure

import (
	"bytes"
	"fmt"
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
	want := `{"bench":"b","case":"z","system":"x","metric":"m","value":9.5,"unit":"s","n":4}
{"bench":"b","case":"a","system":"x","metric":"m","value":1.5,"unit":"s","n":2}
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
		{Result{}, ""},
		{Result{Check: true}, ""},
		{Result{Verdicts: Verdicts{Missed: []string{"m is 2"}}}, ""},
		{Result{Verdicts: Verdicts{Missed: []string{"m is 2"}}, Check: true}, "m is 2"},
		{Result{Began: time.Now().Add(-2 * time.Hour), Check: true}, "the run took 7200 s, the goal is at most 3600"},
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
		if !strings.Contains(text, "reached  n is 1") || !strings.Contains(text, "not measured  o: at most 4") || strings.Contains(text, "MISSED   m is 2") != (c.r.Missed != nil) || !strings.Contains(text, "1–3") || !strings.Contains(text, "the run took") {
			t.Errorf("the table is\n%s", text)
		}
	}
}

func TestChosen(t *testing.T) {
	all, itself := []string{"raw", "plain", "holdfast"}, func(s string) string { return s }
	if _, err := Chosen("systems", all, all, itself, []string{"raw", "yarn"}); err == nil || err.Error() != `--systems: there is no "yarn"; there are raw, plain, holdfast` {
		t.Error(err)
	}
	if got, err := Chosen("systems", all[:1], all, itself, []string{"holdfast", "raw"}); err != nil || len(got) != 2 || got[0] != "raw" {
		t.Errorf("%v %v", got, err)
	}
	if got, err := Chosen("systems", all[:1], all, itself, nil); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
}
