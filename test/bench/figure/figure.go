// Package figure collects the measurements of a benchmark and writes them as rows: one JSON object per line, written
// whole or not at all. Rows are in the order of their first samples. The value of a row is the median of its samples,
// or is derived from other rows.
package figure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Figure is one row of a benchmark: the median of n samples. Samples has all of them in order of measurement; a row derived from others has
// none.
type Figure struct {
	Bench  string  `json:"bench"`
	Case   string  `json:"case"`
	System string  `json:"system"`
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	N      int     `json:"n"`

	Samples []float64 `json:"samples,omitempty"`
}

// Key names a row.
type Key struct{ Case, System, Metric string }

func (f Figure) key() Key { return Key{f.Case, f.System, f.Metric} }

// Has reports whether a row has this key.
func Has(rows []Figure, k Key) bool {
	return slices.ContainsFunc(rows, func(f Figure) bool { return f.key() == k })
}

// Set collects the samples of one benchmark.
type Set struct {
	bench   string
	order   []Key
	unit    map[Key]string
	samples map[Key][]float64
}

// NewSet returns an empty set; bench is the benchmark's name.
func NewSet(bench string) *Set {
	return &Set{bench: bench, unit: map[Key]string{}, samples: map[Key][]float64{}}
}

// Add adds samples to a row; without samples it does nothing.
func (s *Set) Add(kase, system, metric, unit string, values ...float64) {
	k := Key{kase, system, metric}
	if len(values) == 0 {
		return
	}
	if _, ok := s.samples[k]; !ok {
		s.order, s.unit[k] = append(s.order, k), unit
	}
	s.samples[k] = append(s.samples[k], values...)
}

// Forget drops the rows of a case that was not measured to its end; with systems, only of these.
func (s *Set) Forget(kase string, systems ...string) {
	s.order = slices.DeleteFunc(s.order, func(k Key) bool {
		gone := k.Case == kase && (len(systems) == 0 || slices.Contains(systems, k.System))
		if gone {
			delete(s.samples, k)
			delete(s.unit, k)
		}
		return gone
	})
}

// Keys returns the keys of the rows, in order.
func (s *Set) Keys() []Key { return s.order }

// Samples returns the samples of one row.
func (s *Set) Samples(kase, system, metric string) []float64 {
	return s.samples[Key{kase, system, metric}]
}

// Median returns the median of one row, and whether it exists.
func (s *Set) Median(kase, system, metric string) (float64, bool) {
	v := s.Samples(kase, system, metric)
	if len(v) == 0 {
		return 0, false
	}
	return Median(v), true
}

// Cases returns all cases with a row, in order.
func (s *Set) Cases() []string {
	var out []string
	for _, k := range s.order {
		if !slices.Contains(out, k.Case) {
			out = append(out, k.Case)
		}
	}
	return out
}

// Figures returns the rows.
func (s *Set) Figures() []Figure {
	var out []Figure
	for _, k := range s.order {
		f := s.Figure(k, Median(s.samples[k]), s.unit[k], len(s.samples[k]))
		for _, v := range s.samples[k] {
			f.Samples = append(f.Samples, rounded(v))
		}
		out = append(out, f)
	}
	return out
}

// Figure returns a row of this benchmark that is derived from others.
func (s *Set) Figure(k Key, value float64, unit string, n int) Figure {
	return Figure{s.bench, k.Case, k.System, k.Metric, rounded(value), unit, n, nil}
}

func rounded(value float64) float64 { return math.Round(value*1e4) / 1e4 }

// Median returns the median of at least one value.
func Median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// WriteLines writes one JSON object per figure, each with one call, so that an interrupted program leaves no partial line. A figure that is
// NaN or infinite is an error and has no line.
func WriteLines(w io.Writer, figures []Figure) error {
	var broken []error
	for _, f := range figures {
		line, err := json.Marshal(f)
		if err != nil {
			broken = append(broken, fmt.Errorf("%s, %s, %s: %w", f.Case, f.System, f.Metric, err))
			continue
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return errors.Join(append(broken, err)...)
		}
	}
	return errors.Join(broken...)
}
