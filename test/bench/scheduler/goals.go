package main

import (
	"fmt"

	"holdfast.dev/holdfast/test/bench/figure"
)

const (
	lastBound = "last_bound"
	// withEvents is lastBound with the writing of all events that say so.
	withEvents = "last_bound_with_events"
	// visible is how long a gang that does not fit waits to be told so, from its own last pod on.
	visible = "unschedulable_visible"
)

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
	{"5000x5000", withEvents, systemPlain, 0.75},
	{"100x16-racks", lastBound, systemNative, 0.2},
	// Gangs are all placed at once, single pods one by one as kube-scheduler does it.
	{"mix", lastBound, systemRaw, 3},
	{"mix", lastBound, systemPlain, 0.5},
	{"mix", lastBound, systemNative, 0.5},
	{"refused", visible, "", 1},
	{"refused", "unschedulable_writes", "", 3},
}

// verdicts says of every goal what became of it. Small cases say nothing.
func (b *bench) verdicts() (v figure.Verdicts) {
	for _, g := range goals {
		what := g.metric
		if g.against != "" {
			what += " / " + g.against
		}
		got, ok := b.value(g)
		if !ok || b.Quick {
			v.Unmeasured = append(v.Unmeasured, fmt.Sprintf("%s: %s, the goal is at most %g", g.kase, what, g.bound))
			continue
		}
		v.Say(got <= g.bound, fmt.Sprintf("%s: %s is %.3g, the goal is at most %g", g.kase, what, got, g.bound))
	}
	return v
}

// value is what a goal is about; not ok where it was not measured, or another system was done before the last pod was
// created, so that nothing is a multiple of its time.
func (b *bench) value(g goal) (float64, bool) {
	got, ok := b.Median(g.kase, systemHoldfast, g.metric)
	if !ok || g.against == "" {
		return got, ok
	}
	other, ok := b.Median(g.kase, g.against, g.metric)
	if !ok || other <= 0 {
		return 0, false
	}
	return got / other, true
}

// compared are the metrics of which holdfast's is told as a multiple of each other system's.
var compared = []string{lastBound, withEvents, visible}

// lines are the figures and these multiples.
func (b *bench) lines() []figure.Figure {
	all := b.Figures()
	for _, kase := range b.Cases() {
		for _, metric := range compared {
			for _, s := range systems {
				if s.name != systemHoldfast {
					all = append(all, b.Ratio(kase, metric, systemHoldfast, s.name, metric+"_vs_"+s.name, figure.Times)...)
				}
			}
		}
	}
	return all
}
