// Package html has what pages about jobs share: their style, and the table of a job's recoveries with a bar of phases
// each. A page is one file that loads nothing.
package html

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
)

// Table are the recoveries of a job, with bars of one scale.
type Table struct{ Rows []Row }

// Row is one recovery.
type Row struct {
	// What is its cause in a line, Detail what else is known.
	What   string
	Detail []string
	// Phases follow one another; Total is their sum, in milliseconds.
	Phases          []Phase
	Total           float64
	Recomputed      string
	Standbys, Ranks int32
}

// Phase is one part of a recovery, in milliseconds.
type Phase struct {
	Name string
	Ms   float64
}

//go:embed shared.html
var shared string

// Pages parses a page; its template may use the templates "style" and "recoveries" (of a Table) and the given functions.
func Pages(source string, functions template.FuncMap) *template.Template {
	t := template.New("page").Funcs(template.FuncMap{
		"bar": bar, "colour": colour, "seconds": func(ms float64) string { return fmt.Sprintf("%.2f s", ms/1000) },
	}).Funcs(functions)
	return template.Must(template.Must(t.Parse(shared)).Parse(source))
}

var colours = map[string]template.CSS{
	"detect": "#c0392b", "decide": "#e67e22", "drain": "#16a085", "stop": "#f1c40f", "replace": "#7f8c8d", "fetch": "#34495e",
	"check": "#d35400", "start": "#2980b9", "restore": "#8e44ad", "first step": "#27ae60",
}

func colour(phase string) template.CSS { return colours[phase] }

// Names are the phases that rows of the table have, in the order of their first appearance.
func (t Table) Names() (names []string) {
	seen := map[string]bool{}
	for _, r := range t.Rows {
		for _, p := range r.Phases {
			if !seen[p.Name] {
				seen[p.Name] = true
				names = append(names, p.Name)
			}
		}
	}
	return names
}

type segment struct {
	X, Width float64
	Fill     template.CSS
	Title    string
}

// bar lays a row's phases end to end on a scale that all rows share.
func bar(t Table, row Row, width float64) []segment {
	longest := 1.0
	for _, other := range t.Rows {
		longest = math.Max(longest, other.Total)
	}
	var out []segment
	x := 0.0
	for _, p := range row.Phases {
		w := p.Ms / longest * width
		out = append(out, segment{X: x, Width: math.Max(w, 1), Fill: colour(p.Name), Title: fmt.Sprintf("%s: %.0f ms", p.Name, p.Ms)})
		x += w
	}
	return out
}
