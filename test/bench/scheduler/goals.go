package main

import "holdfast.dev/holdfast/test/bench/figure"

const (
	lastBound = "last_bound"
	// firstBound is the time from the creation of the last pod until the first pod is bound.
	firstBound = "first_bound"
	// withEvents is lastBound including the writes of all Scheduled events.
	withEvents = "last_bound_with_events"
	// eventsAfter is the time from the last binding until then.
	eventsAfter = "events_after_last_bound"
	// boundCPU is the processor time of all processes from the creation of the last pod until the last pod is bound.
	boundCPU = "last_bound_cpu"
	// visible is the time from the last pod of a gang that does not fit until its refusal is visible.
	visible = "unschedulable_visible"
	// refusalWrites is the number of the scheduler's writes about it.
	refusalWrites = "unschedulable_writes"
)

// goals are bounds of holdfast's metrics, absolute or as a multiple of another system's in the same run.
var goals = []figure.Goal{
	goal("1250x1250", systemHoldfast, lastBound, systemRaw, 1.2),
	goal("1250x1250", systemPodGroup, lastBound, systemRaw, 1.2),
	goal("1250x1250", systemJob, lastBound, systemRawJob, 1.2),
	goal("1250x1250", systemHoldfast, lastBound, systemPlain, 0.5),
	goal("1250x1250", systemHoldfast, lastBound, systemNative, 0.2),
	goal("5000x5000", systemHoldfast, lastBound, systemRaw, 1.2),
	goal("5000x5000", systemPodGroup, lastBound, systemRaw, 1.2),
	goal("5000x5000", systemJob, lastBound, systemRawJob, 1.2),
	goal("5000x5000", systemHoldfast, lastBound, systemPlain, 0.25),
	goal("5000x5000", systemHoldfast, lastBound, systemNative, 0.1),
	goal("5000x5000", systemHoldfast, withEvents, systemPlain, 0.75),
	// Holdfast limits the rate of its events, raw does not.
	goal("5000x5000", systemHoldfast, withEvents, systemRaw, 1.5),
	goal("5000x5000", systemPodGroup, withEvents, systemRaw, 1.5),
	goal("5000x5000", systemJob, withEvents, systemRawJob, 1.5),
	goal(larger, systemHoldfast, lastBound, "5000x5000", 2.2),
	goal("100x16-racks", systemHoldfast, lastBound, systemNative, 0.2),
	// Gangs are placed at once, single pods one by one as by kube-scheduler.
	goal("mix", systemHoldfast, lastBound, systemRaw, 3),
	goal("mix", systemHoldfast, lastBound, systemPlain, 0.5),
	goal("mix", systemHoldfast, lastBound, systemNative, 0.5),
	goal("refused", systemHoldfast, visible, "", 1),
	// A condition per pod, which autoscalers read; native writes two objects per pod.
	goal("refused", systemHoldfast, refusalWrites, systemNative, 0.6),
}

// larger is the case that is compared with 5000x5000.
const larger = "10000x15000"

// writeGoals are those of policyCost.
var writeGoals = []figure.Goal{{Key: figure.Key{Case: writesCase, System: systemHoldfast, Metric: writeRatio}, Bound: 1.02}}

func goal(kase, system, metric, against string, bound float64) figure.Goal {
	if against != "" {
		metric += "_vs_" + against
	}
	return figure.Goal{Key: figure.Key{Case: kase, System: system, Metric: metric}, Bound: bound}
}

// compared are the metrics that are also given as a multiple of each other system's.
var compared = []string{lastBound, boundCPU, withEvents, visible, refusalWrites}

// against are the systems with which each form of Holdfast's gangs is compared.
var against = map[string][]string{
	systemHoldfast: {systemRaw, systemPlain, systemNative, systemCoscheduling},
	systemPodGroup: {systemRaw, systemPlain, systemNative, systemCoscheduling},
	systemJob:      {systemRawJob},
}

// lines are the figures and these multiples.
func (b *bench) lines() []figure.Figure {
	all := b.Figures()
	for _, kase := range b.Cases() {
		for _, metric := range compared {
			for _, mine := range forms {
				for _, other := range against[mine] {
					all = append(all, b.Ratio(figure.Key{Case: kase, System: mine, Metric: metric},
						figure.Key{Case: kase, System: other, Metric: metric}, metric+"_vs_"+other, figure.Times)...)
				}
			}
		}
	}
	for _, metric := range []string{lastBound, boundCPU, "scheduler_memory"} {
		mine := figure.Key{Case: larger, System: systemHoldfast, Metric: metric}
		theirs := figure.Key{Case: "5000x5000", System: systemHoldfast, Metric: metric}
		all = append(all, b.Ratio(mine, theirs, metric+"_vs_5000x5000", figure.Times)...)
	}
	return all
}
