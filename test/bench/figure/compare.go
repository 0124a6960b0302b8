package figure

import (
	"fmt"
	"slices"
)

// Units of figures that compare two systems of one run. Such figures mean something on another machine too.
const (
	// Times is ours as a multiple of another's: less is better.
	Times = "x"
	// Share is our rate as a share of another's: more is better.
	Share = "share"
)

// worseBy is how many times worse than recorded a ratio may be: machines and hours move ratios, too, though by less than times.
const worseBy = 1.5

// Compare says of every ratio that both runs have whether it is worse than the recorded one by more than a bound, and of those that only
// this run has that nothing is recorded.
func Compare(recorded, now []Figure) (v Verdicts) {
	for _, f := range now {
		if f.Unit != Times && f.Unit != Share {
			continue
		}
		what := fmt.Sprintf("%s: %s of %s is %.3g", f.Case, f.Metric, f.System, f.Value)
		i := slices.IndexFunc(recorded, func(r Figure) bool { return r.key() == f.key() && r.Unit == f.Unit })
		if i < 0 {
			v.Unmeasured = append(v.Unmeasured, what+", nothing is recorded to compare it with")
			continue
		}
		was := recorded[i].Value
		bound, word := was*worseBy, "at most"
		if f.Unit == Share {
			bound, word = was/worseBy, "at least"
		}
		if was <= 0 { // done before the clock began: nothing is a multiple of that
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s, recorded is %.3g, of which nothing is a multiple", what, was))
			continue
		}
		v.Say(f.Unit == Times && f.Value <= bound || f.Unit == Share && f.Value >= bound, fmt.Sprintf("%s, recorded is %.3g: %s %.3g", what, was, word, bound))
	}
	return v
}

func (f Figure) key() Key { return Key{f.Case, f.System, f.Metric} }

// Ratio is the row that compares a metric of one system with that of another, medians of one run; none where one of them was not
// measured, or was done before the clock began.
func (s *Set) Ratio(kase, metric, system, other, name, unit string) []Figure {
	mine, ok1 := s.Median(kase, system, metric)
	theirs, ok2 := s.Median(kase, other, metric)
	if !ok1 || !ok2 || mine <= 0 || theirs <= 0 {
		return nil
	}
	n := min(len(s.Samples(kase, system, metric)), len(s.Samples(kase, other, metric)))
	return []Figure{s.Figure(Key{kase, system, name}, mine/theirs, unit, n)}
}
