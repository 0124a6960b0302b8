package main

import "holdfast.dev/holdfast/test/bench/figure"

const (
	lastBound = "last_bound"
	// withEvents is lastBound including the writes of all Scheduled events.
	withEvents = "last_bound_with_events"
	// visible is the time from the last pod of a gang that does not fit until its refusal is visible.
	visible = "unschedulable_visible"
)

// goals are bounds of holdfast's metrics, absolute or as a multiple of another system's in the same run.
var goals = []figure.Goal{
	goal("1250x1250", lastBound, systemRaw, 2.5),
	goal("1250x1250", lastBound, systemPlain, 0.5),
	goal("1250x1250", lastBound, systemNative, 0.2),
	goal("5000x5000", lastBound, systemRaw, 2.5),
	goal("5000x5000", lastBound, systemPlain, 0.25),
	goal("5000x5000", lastBound, systemNative, 0.1),
	goal("5000x5000", withEvents, systemPlain, 0.75),
	goal("100x16-racks", lastBound, systemNative, 0.2),
	// Gangs are placed at once, single pods one by one as by kube-scheduler.
	goal("mix", lastBound, systemRaw, 3),
	goal("mix", lastBound, systemPlain, 0.5),
	goal("mix", lastBound, systemNative, 0.5),
	goal("refused", visible, "", 1),
	goal("refused", "unschedulable_writes", "", 3),
}

// writeGoals are those of policyCost.
var writeGoals = []figure.Goal{{Key: figure.Key{Case: writesCase, System: systemHoldfast, Metric: writeRatio}, Bound: 1.02}}

func goal(kase, metric, against string, bound float64) figure.Goal {
	if against != "" {
		metric += "_vs_" + against
	}
	return figure.Goal{Key: figure.Key{Case: kase, System: systemHoldfast, Metric: metric}, Bound: bound}
}

// compared are the metrics that are also given as a multiple of each other system's.
var compared = []string{lastBound, withEvents, visible}

// lines are the figures and these multiples.
func (b *bench) lines() []figure.Figure {
	all := b.Figures()
	for _, kase := range b.Cases() {
		for _, metric := range compared {
			for _, s := range systems {
				if s.name != systemHoldfast {
					mine := figure.Key{Case: kase, System: systemHoldfast, Metric: metric}
					theirs := figure.Key{Case: kase, System: s.name, Metric: metric}
					all = append(all, b.Ratio(mine, theirs, metric+"_vs_"+s.name, figure.Times)...)
				}
			}
		}
	}
	return all
}
