package figure

import (
	"fmt"
	"slices"
)

// Units of rows that compare two rows of one run. They are meaningful on other machines, too.
const (
	// Times is a value as a multiple of another: less is better.
	Times = "x"
	// Share is a rate as a share of another: more is better.
	Share = "share"
)

// Ratio returns the row that compares mine with theirs, by medians of one run. Ratio returns none if one of them was not measured, or ended
// before the clock began.
func (s *Set) Ratio(mine, theirs Key, name, unit string) []Figure {
	a, b := s.samples[mine], s.samples[theirs]
	if len(a) == 0 || len(b) == 0 || Median(a) <= 0 || Median(b) <= 0 {
		return nil
	}
	return []Figure{s.Figure(Key{mine.Case, mine.System, name}, Median(a)/Median(b), unit, min(len(a), len(b)))}
}

// Goal bounds the value of a row, or its worst sample if each must hold: at most Bound, or at least.
type Goal struct {
	Key
	Bound       float64
	Least, Each bool
}

// Verdicts has the result of every goal. A goal that was not measured is not reached.
type Verdicts struct{ Missed, Reached, Unmeasured []string }

// judge compares rows with goals; for a quick run with none.
func judge(rows []Figure, goals []Goal, quick bool) (v Verdicts) {
	for _, g := range goals {
		what, word := fmt.Sprintf("%s: %s of %s", g.Case, g.Metric, g.System), "at most"
		if g.Least {
			word = "at least"
		}
		i := slices.IndexFunc(rows, func(f Figure) bool { return f.key() == g.Key })
		if i < 0 || quick {
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s, the goal is %s %.3g", what, word, g.Bound))
			continue
		}
		got, how := rows[i].Value, ""
		if g.Each {
			got, how = slices.Max(rows[i].Samples), " at worst"
		}
		text := fmt.Sprintf("%s is %.3g%s, the goal is %s %.3g", what, got, how, word, g.Bound)
		if g.Least && got >= g.Bound || !g.Least && got <= g.Bound {
			v.Reached = append(v.Reached, text)
		} else {
			v.Missed = append(v.Missed, text)
		}
	}
	return v
}
