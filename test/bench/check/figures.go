package main

import (
	"context"

	"holdfast.dev/holdfast/test/bench/figure"
)

// The systems: a gang whose pods are checked, one whose pods are not, and dlrover-run.
const (
	systemHoldfast  = "holdfast"
	systemUnchecked = "holdfast-off"
	systemDLRover   = "dlrover-run"
)

// The cases: torch must be read from the disk, or is in memory; the node has a pass, so that no pod is tried.
const caseCold, caseWarm, casePassed = "cold", "warm", "passed"

var cases = []string{caseCold, caseWarm, casePassed}

// pods and ranks are the size of each gang: pods, and ranks per pod.
const pods, ranks = 3, 2

// The metrics.
const (
	checkTime    = "check_s"
	startTime    = "start_s"
	startDelay   = "start_delay_s"
	noCheck      = "no_check_within_s"
	notInstalled = "not_installed"
)

// system plays one case once; short is part of its jobs' names.
type system struct {
	name, short string
	play        func(ctx context.Context, b *bench, kase, name string) error
}

var systems = []system{
	{systemUnchecked, "off", func(ctx context.Context, b *bench, kase, name string) error {
		return b.underHoldfast(ctx, kase, systemUnchecked, name)
	}},
	{systemHoldfast, "on", func(ctx context.Context, b *bench, kase, name string) error {
		return b.underHoldfast(ctx, kase, systemHoldfast, name)
	}},
	{systemDLRover, "dlrover", func(ctx context.Context, b *bench, kase, name string) error { return b.underDLRover(ctx, kase, name) }},
}

// results has the samples of all cases.
type results struct{ *figure.Set }

func newResults() *results { return &results{figure.NewSet(benchName)} }

// figures are the rows, with the delay of the start and the comparison with dlrover-run.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	for _, kase := range r.Cases() {
		key := func(system, metric string) figure.Key { return figure.Key{Case: kase, System: system, Metric: metric} }
		with, ok := r.Median(kase, systemHoldfast, startTime)
		without, ok2 := r.Median(kase, systemUnchecked, startTime)
		if ok && ok2 {
			out = append(out, r.Figure(key(systemHoldfast, startDelay), with-without, "s", len(r.Samples(kase, systemHoldfast, startTime))))
		}
		out = append(out, r.Ratio(key(systemHoldfast, checkTime), key(systemDLRover, checkTime), checkTime+"_vs_"+systemDLRover, figure.Times)...)
	}
	return out
}

// goals returns the goals of the measured cases.
func (r *results) goals() (all []figure.Goal) {
	for _, kase := range r.Cases() {
		key := func(metric string) figure.Key { return figure.Key{Case: kase, System: systemHoldfast, Metric: metric} }
		if kase == casePassed {
			all = append(all, figure.Goal{Key: key(startDelay), Bound: 1})
		}
		if len(r.Samples(kase, systemHoldfast, checkTime)) == 0 {
			continue
		}
		all = append(all, figure.Goal{Key: key(checkTime), Bound: 25, Each: true})
		if len(r.Samples(kase, systemDLRover, checkTime)) > 0 {
			all = append(all, figure.Goal{Key: key(checkTime + "_vs_" + systemDLRover), Bound: 0.3})
		}
	}
	return all
}
