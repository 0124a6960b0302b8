package explain

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/html"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/gang/status"
)

//go:embed report.html
var reportSource string

var reportPage = html.Pages(reportSource, nil)

// figure is a number in large type, with what it counts.
type figure struct{ Value, What string }

// mark is a recovery in the timeline, in its units.
type mark struct {
	X, Width float64
	Title    string
}

// timelineWidth is the width of the timeline, from the first start to now or to the end.
const timelineWidth = 800

// report is what the page shows.
type report struct {
	Title, Phase, At string
	Figures          []figure
	From, To         string
	Marks            []mark
	Table            html.Table
	Conditions       [][3]string
	Members          [][5]string
	Notes            []string
	Verdict          string
}

// WritePage writes the explanation as one HTML file that loads nothing: figures, a timeline, each recovery, conditions and pods.
func (e Explanation) WritePage(w io.Writer) error { return reportPage.Execute(w, e.report()) }

func (e Explanation) report() report {
	r := report{Title: page.JobTitle(e.Namespace, e.Job), Phase: string(e.Status.Phase), At: e.At.UTC().Format(time.RFC3339)}
	r.Notes = slices.Concat(e.Status.Notes, e.Unread)
	run := e.Status.Run
	if run != nil {
		e.figures(&r, run)
		for i := range run.Recoveries {
			r.Table.Rows = append(r.Table.Rows, e.row(&run.Recoveries[i]))
		}
		e.timeline(&r, run)
		if run.Verdict != nil {
			p := &page.Page{}
			verdict(p, run.Verdict)
			r.Verdict = strings.TrimSpace(p.String())
		}
	}
	for _, t := range titles {
		for _, c := range e.Status.Conditions {
			if c.Type == t.condition && quiet[c.Type] != c.Status {
				r.Conditions = append(r.Conditions, [3]string{t.title, yes(string(c.Status)), c.Reason + ": " + c.Message})
			}
		}
	}
	for _, m := range e.Status.Members {
		agent := map[bool]string{true: "attached", false: "not attached"}[m.Attached]
		verdict := page.Dash(e.words(m.Node).Line())
		r.Members = append(r.Members, [5]string{fmt.Sprint(m.Slot), page.Dash(m.Pod), page.Dash(m.Node), agent, verdict})
	}
	return r
}

// figures are the numbers at the top.
func (e Explanation) figures(r *report, run *v1alpha1.RunStatus) {
	add := func(value, what string) { r.Figures = append(r.Figures, figure{value, what}) }
	if share, ok := status.Goodput(run, e.At); ok {
		add(fmt.Sprintf("%.1f%%", 100*share), "goodput")
	}
	if share := e.Status.CapacityPercent; share != nil {
		add(fmt.Sprintf("%d%%", *share), "capacity")
	}
	add(fmt.Sprint(run.Restarts), "restarts")
	if e.Status.Step > 0 {
		add(fmt.Sprint(e.Status.Step), "steps that all ranks finished")
	}
	add((time.Duration(run.Progress.LostMs) * time.Millisecond).Round(time.Second).String(), "lost to recoveries")
	if run.Durable != nil {
		add(fmt.Sprint(run.Durable.Step), "newest step in storage")
	}
}

// row is a recovery in the table: phases within others are left out, so that the others add up.
func (e Explanation) row(rec *v1alpha1.Recovery) html.Row {
	row := html.Row{
		What:     fmt.Sprintf("generation %d: %s", rec.Generation, causeLine(&rec.Cause)),
		Detail:   []string{rec.DetectedAt.UTC().Format(time.DateTime) + ", detected by " + detected(rec)},
		Standbys: rec.Standbys, Ranks: rec.Ranks, Recomputed: "not known",
	}
	if rec.StepsRecomputed != nil {
		row.Recomputed = page.Count(*rec.StepsRecomputed, "step", "steps")
	}
	for i := range rec.Replaced {
		p := &rec.Replaced[i]
		row.Detail = append(row.Detail, fmt.Sprintf("slot %d: %s on %s, replaced by %s on %s", p.Slot, p.Pod, page.Dash(p.Node), page.Dash(p.By), page.Dash(p.NewNode)))
	}
	add := func(name string, ms *int64) {
		if ms != nil {
			row.Phases = append(row.Phases, html.Phase{Name: name, Ms: float64(*ms)})
			row.Total += float64(*ms)
		}
	}
	add("detect", rec.DetectMs)
	for _, p := range phases(rec) {
		if p.within == nil {
			add(p.name, p.ms)
		}
	}
	return row
}

// timeline places the recoveries between the first start and now, or the end.
func (e Explanation) timeline(r *report, run *v1alpha1.RunStatus) {
	if run.StartedAt == nil {
		return
	}
	from, to := run.StartedAt.Time, e.At
	if run.Verdict != nil {
		to = run.Verdict.At.Time
	}
	span := to.Sub(from)
	if span <= 0 {
		return
	}
	r.From, r.To = from.UTC().Format(time.DateTime), to.UTC().Format(time.DateTime)
	at := func(t time.Time) float64 {
		return math.Min(timelineWidth, math.Max(0, float64(t.Sub(from))/float64(span)*timelineWidth))
	}
	for i := range run.Recoveries {
		rec := &run.Recoveries[i]
		x := at(rec.DetectedAt.Time)
		end := at(rec.DetectedAt.Add(time.Duration(r.Table.Rows[i].Total) * time.Millisecond))
		r.Marks = append(r.Marks, mark{X: x, Width: math.Max(2, end-x), Title: r.Table.Rows[i].What})
	}
}
