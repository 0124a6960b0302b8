package story

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/html"
)

//go:embed page.html
var pageSource string

var page = html.Pages(pageSource, template.FuncMap{"curves": curves, "table": table})

// WritePage writes the report as one self-contained HTML page.
func (r *Report) WritePage(w io.Writer) error { return page.Execute(w, r) }

// table has the report's recoveries for the page.
func table(r *Report) (t html.Table) {
	for _, rec := range r.Recoveries {
		row := html.Row{What: rec.What, Total: rec.Total, Recomputed: recomputed(rec.StepsRecomputed), Standbys: rec.Standbys, Ranks: rec.Ranks}
		for _, p := range rec.Phases {
			row.Phases = append(row.Phases, html.Phase(p))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
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
