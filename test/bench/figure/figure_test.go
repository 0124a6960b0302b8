package figure

import (
	"bytes"
	"testing"
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
