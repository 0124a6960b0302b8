package main

import (
	"regexp"
	"slices"
	"strconv"

	"holdfast.dev/holdfast/test/bench/figure"
)

// systemHoldfast and the names of launchers are the systems; systemLimit is what none that looks at ranks as Holdfast does can beat.
const (
	systemHoldfast = "holdfast"
	systemLimit    = "limit"
)

// The faults, as plain.py calls them.
const (
	faultSleeps     = "sleeps"
	faultCollective = "collective"
	faultStopped    = "stopped"
	faultInside     = "inside"
)

var faults = []string{faultInside, faultCollective, faultSleeps, faultStopped}

const (
	// odd is the rank that stands still, as in plain.py.
	odd   = 2
	ranks = 4
	// quietLeast is the limit of package quiet for a job whose steps are short: ranks are not looked at before.
	quietLeast = 15.0
	// spacing is the time from the first to the last of the looks that a verdict needs (package quiet).
	spacing = 10.0
)

// The metrics.
const (
	toReport      = "step_to_report_s"
	lookToReport  = "first_look_to_report_s"
	named         = "culprit_named"
	alone         = "culprit_alone_named"
	inTime        = "named_within_20s_of_first_look"
	noReport      = "no_report_within_s"
	toOrder       = "step_to_order_s"
	orderToStep   = "order_to_step_s"
	noEnd         = "no_new_step_within_s"
	again         = "steps_again"
	notInstalled  = "not_installed"
	startingAgain = "start_to_step_s"
)

// results has the samples of all cases; a case is a fault.
type results struct{ *figure.Set }

func newResults() *results { return &results{figure.NewSet(benchName)} }

// outcome is what a system did about one hang. Times are in seconds.
type outcome struct {
	// reported is from the last step to the report; 0: none came. names are the ranks that it blames, ascending.
	reported float64
	names    []int
	// ordered is from the last step to the order to end the ranks, stepped from the order to the first new step of the last rank, started
	// from the start of the last new process to that step; ordered is 0 if the ranks were not ended.
	ordered, stepped, started float64
	again                     int64
}

// note records an outcome that was waited for so many seconds.
func (r *results) note(fault, system string, o outcome, waited float64) {
	add := func(metric, unit string, value float64) { r.Add(fault, system, metric, unit, value) }
	if o.reported > 0 {
		add(toReport, "s", o.reported)
		add(named, "bool", truth(slices.Contains(o.names, odd)))
		add(alone, "bool", truth(len(o.names) == 1 && o.names[0] == odd))
	} else {
		add(noReport, "s", waited)
	}
	if o.ordered > 0 {
		add(toOrder, "s", o.ordered)
		add(orderToStep, "s", o.stepped)
		add(startingAgain, "s", o.started)
		add(again, "steps", float64(o.again))
	} else {
		add(noEnd, "s", waited)
	}
	if system == systemHoldfast {
		look := max(0, o.reported-quietLeast)
		if o.reported > 0 {
			add(lookToReport, "s", look)
		}
		add(inTime, "bool", truth(o.reported > 0 && look <= 20 && slices.Contains(o.names, odd)))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// figures are the rows, with the limit of each fault, and the share of all hangs whose culprit was named in time.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	all := []float64{}
	for _, fault := range r.Cases() {
		key := func(system, metric string) figure.Key { return figure.Key{Case: fault, System: system, Metric: metric} }
		if all = append(all, r.Samples(fault, systemHoldfast, inTime)...); len(r.Samples(fault, systemHoldfast, inTime)) == 0 {
			continue
		}
		out = append(out, r.Figure(key(systemLimit, toReport), quietLeast+spacing, "s", 0))
		if v, ok := r.Median(fault, systemHoldfast, toReport); ok {
			out = append(out, r.Figure(key(systemHoldfast, toReport+"_vs_limit"), v/(quietLeast+spacing), figure.Times, 1))
		}
		for _, l := range launchers {
			out = append(out, r.Ratio(key(systemHoldfast, toReport), key(l.name, toReport), toReport+"_vs_"+l.name, figure.Times)...)
			out = append(out, r.Ratio(key(systemHoldfast, orderToStep), key(l.name, orderToStep), orderToStep+"_vs_"+l.name, figure.Times)...)
		}
	}
	if n := len(all); n > 0 {
		out = append(out, r.Figure(figure.Key{Case: allFaults, System: systemHoldfast, Metric: inTime}, mean(all), figure.Share, n))
	}
	return out
}

// allFaults is the case of figures over all faults.
const allFaults = "all faults"

func mean(v []float64) (out float64) {
	for _, x := range v {
		out += x / float64(len(v))
	}
	return out
}

// goals returns the goals of the measured cases.
func (r *results) goals() (all []figure.Goal) {
	add := func(fault, metric string, bound float64, least, each bool) {
		k := figure.Key{Case: fault, System: systemHoldfast, Metric: metric}
		all = append(all, figure.Goal{Key: k, Bound: bound, Least: least, Each: each})
	}
	for _, fault := range r.Cases() {
		if len(r.Samples(fault, systemHoldfast, inTime)) == 0 {
			continue
		}
		add(fault, toReport, 60, false, true)
		if len(r.Samples(fault, systemHoldfast, orderToStep)) > 0 {
			add(fault, orderToStep, 2, false, false)
		}
		if len(all) > 0 && fault == r.Cases()[len(r.Cases())-1] {
			add(allFaults, inTime, 0.95, true, false)
		}
	}
	return all
}

// rankWords are the ways in which texts name ranks: "rank 2", "ranks 0, 1 and 3-5", "local_rank: 3".
var rankWords = regexp.MustCompile(`(?i)\branks?[ :=]+(\d+(?:(?:, | and |-)\d+)*)`)

var number = regexp.MustCompile(`(\d+)(?:-(\d+))?`)

// ranksIn returns the ranks that a text names, ascending.
func ranksIn(text string) (out []int) {
	for _, m := range rankWords.FindAllStringSubmatch(text, -1) {
		for _, n := range number.FindAllStringSubmatch(m[1], -1) {
			from, _ := strconv.Atoi(n[1])
			to := from
			if n[2] != "" {
				to, _ = strconv.Atoi(n[2])
			}
			for r := from; r <= min(to, ranks-1); r++ {
				out = append(out, r)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
