package main

import (
	"fmt"

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
