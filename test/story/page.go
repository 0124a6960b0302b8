package story

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"curves": curves, "bar": bar, "seconds": func(ms float64) string { return fmt.Sprintf("%.2f s", ms/1000) },
	"phaseColour": phaseColour, "recomputed": recomputed, "inc": func(i int) int { return i + 1 }, "phases": func() []string { return PhaseNames },
}).Parse(pageSource))

// WritePage writes the report as one self-contained HTML page.
func (r *Report) WritePage(w io.Writer) error { return page.Execute(w, r) }

var phaseColours = map[string]string{
	"detect": "#c0392b", "decide": "#e67e22", "drain": "#16a085", "stop": "#f1c40f", "replace": "#7f8c8d", "fetch": "#34495e", "start": "#2980b9", "restore": "#8e44ad", "first step": "#27ae60",
}

func phaseColour(name string) template.CSS { return template.CSS(phaseColours[name]) }

type segment struct {
	X, Width float64
	Fill     template.CSS
	Title    string
}

// bar lays a recovery's phases end to end on a scale that all recoveries of the report share.
func bar(r *Report, rec Recovery, width float64) []segment {
	longest := 1.0
	for _, other := range r.Recoveries {
		longest = math.Max(longest, other.Total)
	}
	var out []segment
	x := 0.0
	for _, p := range rec.Phases {
		w := p.Ms / longest * width
		out = append(out, segment{X: x, Width: math.Max(w, 1), Fill: phaseColour(p.Name), Title: fmt.Sprintf("%s: %.0f ms", p.Name, p.Ms)})
		x += w
	}
	return out
}

type chart struct {
	Undisturbed, Disturbed string
	Restarts               []float64
	Low, High              string
	Steps                  int
}

// curves turns both loss series into SVG polyline points inside width × height.
func curves(l Losses, width, height float64) chart {
	low, high := math.Inf(1), math.Inf(-1)
	for _, series := range [][]float64{l.Disturbed, l.Undisturbed} {
		for _, v := range series {
			low, high = math.Min(low, v), math.Max(high, v)
		}
	}
	if high <= low {
		high = low + 1
	}
	steps := max(len(l.Disturbed), len(l.Undisturbed), 2)
	at := func(step int) float64 { return float64(step) / float64(steps-1) * width }
	points := func(series []float64) string {
		var b strings.Builder
		for i, v := range series {
			fmt.Fprintf(&b, "%.1f,%.1f ", at(i), height-(v-low)/(high-low)*height)
		}
		return b.String()
	}
	c := chart{
		Undisturbed: points(l.Undisturbed),
		Disturbed:   points(l.Disturbed),
		Low:         fmt.Sprintf("%.3f", low),
		High:        fmt.Sprintf("%.3f", high),
		Steps:       steps,
	}
	for _, s := range l.RestartedAt {
		c.Restarts = append(c.Restarts, at(int(s)))
	}
	return c
}
