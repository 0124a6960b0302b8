package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"holdfast.dev/holdfast/test/bench/figure"
)

const lastBound = "last_bound"

// goal is a bound for holdfast's metric: of its median as it is, or as a multiple of another system's median in the same run.
type goal struct {
	kase, metric, against string
	bound                 float64
}

var goals = []goal{
	{"1250x1250", lastBound, systemRaw, 2.5},
	{"1250x1250", lastBound, systemPlain, 0.5},
	{"1250x1250", lastBound, systemNative, 0.2},
	{"5000x5000", lastBound, systemRaw, 2.5},
	{"5000x5000", lastBound, systemPlain, 0.25},
	{"5000x5000", lastBound, systemNative, 0.1},
	{"refused", "unschedulable_visible", "", 1},
	{"refused", "unschedulable_writes", "", 3},
}

// verdicts names every goal that was measured, by whether it was reached. Small cases say nothing.
func (b *bench) verdicts() (missed, reached []string) {
	if b.quick {
		return nil, nil
	}
	for _, g := range goals {
		got, ok := b.Median(g.kase, systemHoldfast, g.metric)
		if !ok {
			continue
		}
		text := g.metric
		if g.against != "" {
			other, ok := b.Median(g.kase, g.against, g.metric)
			if !ok {
				continue
			}
			got, text = got/other, text+" / "+g.against
		}
		text = fmt.Sprintf("%s: %s is %.3g, the goal is at most %g", g.kase, text, got, g.bound)
		if got <= g.bound {
			reached = append(reached, text)
		} else {
			missed = append(missed, text)
		}
	}
	return missed, reached
}

// lines are the figures and holdfast's last_bound as a multiple of each other system's.
func (b *bench) lines() []figure.Figure {
	all := b.Figures()
	for _, kase := range b.Cases() {
		ours, ok := b.Median(kase, systemHoldfast, lastBound)
		if !ok {
			continue
		}
		for _, s := range systems {
			if other, ok := b.Median(kase, s.name, lastBound); ok && s.name != systemHoldfast && other > 0 {
				k := figure.Key{Case: kase, System: systemHoldfast, Metric: lastBound + "_vs_" + s.name}
				all = append(all, b.Figure(k, ours/other, "x", len(b.Samples(kase, systemHoldfast, lastBound))))
			}
		}
	}
	return all
}

// table writes the figures for people.
func (b *bench) table(missed, reached []string) error {
	tw := tabwriter.NewWriter(b.progress, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "\n  case\tsystem\tmetric\tmedian\tunit\tsamples\trange")
	for _, f := range b.lines() {
		all := b.Samples(f.Case, f.System, f.Metric)
		if len(all) == 0 {
			all = []float64{f.Value}
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%.4g\t%s\t%d\t%.4g–%.4g\n", f.Case, f.System, f.Metric, f.Value, f.Unit, f.N, slices.Min(all), slices.Max(all))
	}
	fmt.Fprintln(tw, "\nGoals that were measured")
	for _, text := range reached {
		fmt.Fprintf(tw, "  reached  %s\n", text)
	}
	for _, text := range missed {
		fmt.Fprintf(tw, "  MISSED   %s\n", text)
	}
	return tw.Flush()
}
