package check

import "slices"

// Medians returns the usual speeds of each model: the medians of the speeds of at least leastSpeeds nodes. Speed 0 was not measured.
func Medians(speeds map[string][]Usual) map[string]Usual {
	out := map[string]Usual{}
	for model, all := range speeds {
		u := Usual{
			Alone: median(all, func(u Usual) float64 { return u.Alone }),
			Pair:  median(all, func(u Usual) float64 { return u.Pair }),
		}
		if u != (Usual{}) {
			out[model] = u
		}
	}
	return out
}

func median(all []Usual, speed func(Usual) float64) float64 {
	var known []float64
	for _, u := range all {
		if v := speed(u); v > 0 {
			known = append(known, v)
		}
	}
	if len(known) < leastSpeeds {
		return 0
	}
	slices.Sort(known)
	return known[len(known)/2]
}

// Slow returns the pods that gave the right results, slower than others of their model.
func (v *Verdict) Slow() (out []Finding) {
	for _, f := range v.Findings {
		if f.Kind == Slow {
			out = append(out, f)
		}
	}
	return out
}
