package figure

import (
	"fmt"
	"slices"
)

// Units of rows that compare two rows of one run. Such figures mean something on another machine too.
const (
	// Times is a value as a multiple of another: less is better.
	Times = "x"
	// Share is a rate as a share of another: more is better.
	Share = "share"
)

// Ratio is the row, in the place of mine, that compares it with theirs: medians of one run. There is none where one of them was not
// measured, or was done before the clock began.
func (s *Set) Ratio(mine, theirs Key, name, unit string) []Figure {
	a, b := s.samples[mine], s.samples[theirs]
	if len(a) == 0 || len(b) == 0 || Median(a) <= 0 || Median(b) <= 0 {
		return nil
	}
	return []Figure{s.Figure(Key{mine.Case, mine.System, name}, Median(a)/Median(b), unit, min(len(a), len(b)))}
}

// Goal bounds the value of a row, or its worst sample where each must hold: at most Bound, or at least.
type Goal struct {
	Key
	Bound       float64
	Least, Each bool
}

// Verdicts state of every goal what became of it. One that was not measured is not reached.
type Verdicts struct{ Missed, Reached, Unmeasured []string }

// judge compares rows with goals. A quick run measures none.
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
