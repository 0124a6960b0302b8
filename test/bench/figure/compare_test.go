package figure

import (
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	row := func(kase, metric, unit string, value float64) Figure {
		return Figure{Case: kase, System: "holdfast", Metric: metric, Unit: unit, Value: value}
	}
	for _, c := range []struct {
		name          string
		recorded, now []Figure
		want          string // "reached", "MISSED" or "not measured", and words; empty: nothing is said
	}{
		{"as it was", []Figure{row("c", "m", Times, 0.4)}, []Figure{row("c", "m", Times, 0.4)}, "reached"},
		{"better", []Figure{row("c", "m", Times, 0.4)}, []Figure{row("c", "m", Times, 0.01)}, "reached"},
		{"just worse enough to pass", []Figure{row("c", "m", Times, 0.4)}, []Figure{row("c", "m", Times, 0.6)}, "reached"},
		{"worse", []Figure{row("c", "m", Times, 0.4)}, []Figure{row("c", "m", Times, 0.61)}, "MISSED c: m of holdfast is 0.61, recorded is 0.4: at most 0.6"},
		{"done before the clock began", []Figure{row("c", "m", Times, 0.4)}, []Figure{row("c", "m", Times, -0.1)}, "reached"},
		{"recorded before the clock began", []Figure{row("c", "m", Times, -0.1)}, []Figure{row("c", "m", Times, 3)}, "not measured c: m of holdfast is 3, recorded is -0.1"},
		{"a larger share", []Figure{row("c", "m", Share, 0.9)}, []Figure{row("c", "m", Share, 2)}, "reached"},
		{"a share that passes", []Figure{row("c", "m", Share, 0.9)}, []Figure{row("c", "m", Share, 0.6)}, "reached"},
		{"a smaller share", []Figure{row("c", "m", Share, 0.9)}, []Figure{row("c", "m", Share, 0.59)}, "MISSED c: m of holdfast is 0.59, recorded is 0.9: at least 0.6"},
		{"of another case", []Figure{row("d", "m", Times, 0.4)}, []Figure{row("c", "m", Times, 9)}, "not measured c: m of holdfast is 9, nothing is recorded"},
		{"recorded in another unit", []Figure{row("c", "m", Share, 0.4)}, []Figure{row("c", "m", Times, 9)}, "not measured c: m of holdfast is 9, nothing is recorded"},
		{"no ratio", []Figure{row("c", "m", "s", 0.4)}, []Figure{row("c", "m", "s", 9)}, ""},
		{"not asked for", []Figure{row("c", "m", Times, 0.4)}, nil, ""},
	} {
		v := Compare(c.recorded, c.now)
		var got []string
		for word, texts := range map[string][]string{"reached": v.Reached, "MISSED": v.Missed, "not measured": v.Unmeasured} {
			for _, text := range texts {
				got = append(got, word+" "+text)
			}
		}
		if one := strings.Join(got, "; "); len(got) > 1 || (c.want == "") != (one == "") || !strings.HasPrefix(one, c.want) {
			t.Errorf("%s: %q, want %q", c.name, one, c.want)
		}
	}
}

func TestRatiosAreOfMediansOfOneRun(t *testing.T) {
	s := NewSet("b")
	s.Add("c", "ours", "m", "s", 2, 1, 9)
	s.Add("c", "theirs", "m", "s", 4, 4, 4, 4, 4)
	s.Add("c", "early", "m", "s", -1)
	if got := s.Ratio("c", "m", "ours", "theirs", "m_vs_theirs", Times); len(got) != 1 || got[0].Value != 0.5 || got[0].N != 3 ||
		got[0].Metric != "m_vs_theirs" ||
		got[0].Unit != Times {
		t.Errorf("%+v", got)
	}
	s.Add("c", "at once", "m", "s", 0)
	for _, none := range [][2]string{{"ours", "early"}, {"ours", "at once"}, {"ours", "nobody"}, {"early", "theirs"}, {"at once", "theirs"}, {"early", "early"}, {"nobody", "theirs"}} {
		if got := s.Ratio("c", "m", none[0], none[1], "m_vs", Times); got != nil {
			t.Errorf("%s against %s: %+v", none[0], none[1], got)
		}
	}
}
