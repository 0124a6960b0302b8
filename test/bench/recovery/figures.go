package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"holdfast.dev/holdfast/test/bench/figure"
)

// The systems, in the order of the table.
const (
	systemLimit     = "limit"
	systemLimitCold = "limit-cold"
	systemHoldfast  = "holdfast"
	systemCold      = "holdfast-cold"
	systemTorchrun  = "torchrun"
	systemAsComes   = "torchrun as it comes"
)

// The metrics that the table and the goals read.
const (
	killToStep   = "kill_to_step"
	standbyReady = "standby_ready_s"
	standbyFirst = "standby_first_ready_s"
	stepMs       = "step_ms"
	warmingMs    = "step_ms_while_warming"
	recoveredAny = "recovered"
	restoreTime  = "kill_to_restore"
	loadMs       = "load_ms"
	recomputed   = "steps_recomputed"
	// standbyVain is how long standbys were waited for that never were ready.
	standbyVain = "standby_waited_in_vain_s"
	// earlyKills counts the kills that came before every rank's standby was there, earlyToStep is what they took.
	earlyKills  = "kills_before_standby"
	earlyToStep = "kill_before_standby_to_step"
	// oneProcess is a new process that imports, joins a group of itself and steps, with nothing beside it.
	oneProcess = "one_process_alone"
)

// goal is an upper bound of a system's kill_to_step against torchrun in the same case.
type goal struct {
	system string
	ratio  float64
}

var (
	goals = []goal{{systemHoldfast, 0.15}, {systemCold, 1.1}}
	// plainGoals are those of a script that does not know Holdfast.
	plainGoals = []goal{{systemHoldfast, 0.07}}
	// clientGoals are upper bounds of Holdfast's metrics with such a script against those of the script with the client, under the same load
	// of the same run.
	clientGoals = []struct {
		metric, what string
		ratio        float64
	}{{killToStep, "kill to step", 1.5}, {standbyFirst, "first standbys", 1.25}}
)

func goalsOf(kase string) []goal {
	if withClient(kase) != "" {
		return plainGoals
	}
	return goals
}

// withClient is the case that a plain script's is compared with: the same ranks on one pod under the same load; empty for other cases.
func withClient(kase string) string {
	if load, ok := strings.CutPrefix(kase, plain.name+", "); ok {
		return onePod.name + ", " + load
	}
	return ""
}

// againstClient is a metric of Holdfast's with a plain script over the same with the client.
func (r *results) againstClient(kase, metric string) (float64, bool) {
	mine, ok1 := r.Median(kase, systemHoldfast, metric)
	theirs, ok2 := r.Median(withClient(kase), systemHoldfast, metric)
	if withClient(kase) == "" || !ok1 || !ok2 || theirs <= 0 {
		return 0, false
	}
	return mine / theirs, true
}

// standbyGoal is within how many seconds a new job has a warm standby for every rank, however busy its cores are.
const standbyGoal = 20.0

// results are the samples of all cases.
type results struct{ *figure.Set }

// early notes a kill that came before its standbys.
func (r *results) early(kase string, stepped float64) {
	r.Add(kase, systemHoldfast, earlyToStep, "s", stepped)
}

func newResults() *results { return &results{figure.NewSet(benchName)} }

// limits are the systems that a system is compared with, beside torchrun: what no launcher can beat that has processes ready, or has none.
var limits = map[string]string{systemHoldfast: systemLimit, systemCold: systemLimitCold, systemTorchrun: systemLimitCold}

// figures are the rows: every median, the kills before standbys, then every ratio against torchrun, the limits and the script with the
// client.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	for _, kase := range r.Cases() {
		if n := len(r.Samples(kase, systemHoldfast, killToStep)); n > 0 {
			early := len(r.Samples(kase, systemHoldfast, earlyToStep))
			out = append(out, r.Figure(figure.Key{Case: kase, System: systemHoldfast, Metric: earlyKills}, float64(early), "kills", n+early))
		}
		for _, system := range []string{systemLimit, systemLimitCold, systemHoldfast, systemCold} {
			out = append(out, r.Ratio(kase, killToStep, system, systemTorchrun, killToStep+"_vs_torchrun", figure.Times)...)
		}
		for _, system := range []string{systemHoldfast, systemCold, systemTorchrun} {
			out = append(out, r.Ratio(kase, killToStep, system, limits[system], killToStep+"_vs_"+limits[system], figure.Times)...)
		}
		for _, g := range clientGoals {
			if ratio, ok := r.againstClient(kase, g.metric); ok {
				k := figure.Key{Case: kase, System: systemHoldfast, Metric: g.metric + "_vs_client"}
				out = append(out, r.Figure(k, ratio, figure.Times, len(r.Samples(kase, systemHoldfast, g.metric))))
			}
		}
	}
	return out
}

func (r *results) ratio(kase, system string) (float64, bool) {
	mine, ok1 := r.Median(kase, system, killToStep)
	theirs, ok2 := r.Median(kase, systemTorchrun, killToStep)
	if !ok1 || !ok2 || theirs <= 0 {
		return 0, false
	}
	return mine / theirs, true
}

func (r *results) systems(kase string) []string {
	var out []string
	for _, s := range []string{systemLimit, systemLimitCold, systemHoldfast, systemCold, systemTorchrun, systemAsComes} {
		if slices.ContainsFunc(r.Keys(), func(k figure.Key) bool { return k.Case == kase && k.System == s }) {
			out = append(out, s)
		}
	}
	return out
}

// verdict is whether one goal was reached in one case.
type verdict struct {
	kase, system, text string
	value, goal        float64
}

func (v verdict) reached() bool { return v.value <= v.goal }

func (r *results) verdicts() []verdict {
	var out []verdict
	for _, kase := range r.Cases() {
		for _, g := range goalsOf(kase) {
			if ratio, ok := r.ratio(kase, g.system); ok {
				out = append(out, verdict{kase, g.system, fmt.Sprintf("%.3f × torchrun, at most %.2f", ratio, g.ratio), ratio, g.ratio})
			}
		}
		if first, ok := r.Median(kase, systemHoldfast, standbyFirst); ok {
			text := fmt.Sprintf("first standbys ready after %.1f s, at most %.0f s", first, standbyGoal)
			out = append(out, verdict{kase, systemHoldfast, text, first, standbyGoal})
		}
		if waited, ok := r.Median(kase, systemHoldfast, standbyVain); ok {
			text := fmt.Sprintf("no standby for every rank after %.0f s, at most %.0f s", waited, standbyGoal)
			out = append(out, verdict{kase, systemHoldfast, text, waited, standbyGoal})
		}
		for _, g := range clientGoals {
			if ratio, ok := r.againstClient(kase, g.metric); ok {
				text := fmt.Sprintf("%s %.2f × that with the client, at most %.2f", g.what, ratio, g.ratio)
				out = append(out, verdict{kase, systemHoldfast, text, ratio, g.ratio})
			}
		}
	}
	return out
}

// unmeasured lists the goals that nothing is known of.
func (r *results) unmeasured() []string {
	var out []string
	for _, kase := range r.Cases() {
		for _, g := range goalsOf(kase) {
			if _, ok := r.ratio(kase, g.system); !ok {
				out = append(out, fmt.Sprintf("%-14s %s: at most %.2f × torchrun", g.system, kase, g.ratio))
			}
		}
		for _, g := range clientGoals {
			if _, ok := r.againstClient(kase, g.metric); !ok && withClient(kase) != "" {
				out = append(out, fmt.Sprintf("%-14s %s: %s at most %.2f × that with the client", systemHoldfast, kase, g.what, g.ratio))
			}
		}
	}
	if len(r.Cases()) == 0 {
		for _, g := range goals {
			out = append(out, fmt.Sprintf("%-14s at most %.2f × torchrun", g.system, g.ratio))
		}
	}
	return out
}

// tableMetrics are the columns of the table.
var tableMetrics = []struct{ title, metric, format string }{
	{"new processes", "kill_to_start", "%.2f s"}, {"imported", "kill_to_import", "%.2f s"}, {"joined", "kill_to_join", "%.2f s"},
	{"restored", restoreTime, "%.2f s"}, {"recomputed", recomputed, "%.0f"}, {"save", "save_ms", "%.2f ms"}, {"load", loadMs, "%.1f ms"},
	{"before standbys", earlyToStep, "%.2f s"}, {"one process", oneProcess, "%.2f s"},
	{"first standbys", standbyFirst, "%.1f s"}, {"standbys ready", standbyReady, "%.1f s"}, {"step", stepMs, "%.1f ms"}, {"step while warming", warmingMs, "%.1f ms"},
}

// writeTable writes the same for people.
func (r *results) writeTable(w io.Writer) error {
	var b strings.Builder
	for _, kase := range r.Cases() {
		fmt.Fprintf(&b, "\n%s: kill -9 of one rank to the first new step on all ranks (median; range)\n", kase)
		tw := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
		fmt.Fprint(tw, "  system\tkills\tkill to step\trange\t× torchrun")
		for _, m := range tableMetrics {
			fmt.Fprint(tw, "\t", m.title)
		}
		fmt.Fprintln(tw)
		for _, system := range r.systems(kase) {
			fmt.Fprintln(tw, strings.Join(r.row(kase, system), "\t"))
		}
		tw.Flush()
	}
	fmt.Fprintln(&b, "\nGoals")
	for _, v := range r.verdicts() {
		word := "reached"
		if !v.reached() {
			word = "MISSED"
		}
		fmt.Fprintf(&b, "  %-8s %-14s %s: %s\n", word, v.system, v.kase, v.text)
	}
	for _, text := range r.unmeasured() {
		fmt.Fprintf(&b, "  not measured  %s\n", text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *results) row(kase, system string) []string {
	cells := []string{"  " + system}
	samples := r.Samples(kase, system, killToStep)
	switch never, asked := r.Median(kase, system, recoveredAny); {
	case len(samples) > 0:
		cells = append(
			cells,
			fmt.Sprint(len(samples)),
			fmt.Sprintf("%.2f s", figure.Median(samples)),
			fmt.Sprintf("%.2f–%.2f", slices.Min(samples), slices.Max(samples)),
		)
	case asked && never == 0:
		waited, _ := r.Median(kase, system, "waited_s")
		cells = append(cells, "1", "never", fmt.Sprintf("waited %.0f s", waited))
	default:
		cells = append(cells, "-", "-", "-")
	}
	if ratio, ok := r.ratio(kase, system); ok {
		cells = append(cells, fmt.Sprintf("%.3f", ratio))
	} else {
		cells = append(cells, "-")
	}
	for _, m := range tableMetrics {
		cell := "-"
		if v, ok := r.Median(kase, system, m.metric); ok {
			cell = fmt.Sprintf(m.format, v)
		}
		cells = append(cells, cell)
	}
	return cells
}
