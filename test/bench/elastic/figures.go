package main

import (
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/lives"
)

// The systems, in the order of the table.
const (
	systemLimit    = "limit"
	systemHoldfast = "holdfast"
	systemTorchrun = "torchrun"
	systemDLRover  = "dlrover-run"
)

// The cases.
const (
	caseLost   = "lost"
	caseJoined = "joined"
	caseBoth   = "both"
)

const (
	pods, ranksEach = 2, 2
	all             = pods * ranksEach
	fewer           = ranksEach
)

// The metrics.
const (
	lostToStep     = "lost_to_step_s"
	lostToDetected = "lost_to_detected_s"
	detectedToStep = "detected_to_step_s"
	joinedToStep   = "joined_to_step_s"
	stall          = "stall_s"
	again          = "steps_again"
	noStep         = "no_step_within_s"
	repeated       = "samples_repeated"
	skipped        = "samples_skipped"
	notInstalled   = "not_installed"
)

// change is how training went on with another number of ranks, or in other processes.
type change struct {
	// last is the last step of an earlier process, first the first new step of the last rank.
	last, first time.Time
	// again is the number of steps that an earlier process had finished and that were done again.
	again int64
}

// changed returns how so many ranks went on, once each of them has finished a new step in a process whose steps all came after a time. A
// step is new if no process had finished it before these.
func changed(steps []lives.Event, world int, after time.Time) (c change, ok bool) {
	type process struct {
		pod   string
		rank  int
		began time.Time
	}
	of := func(e lives.Event) process { return process{e.Pod, e.Rank, e.Began} }
	old := map[process]bool{}
	for _, e := range steps {
		if e.World != world || e.At().Before(after) {
			old[of(e)] = true
		}
	}
	began := time.Time{}
	for _, e := range steps {
		if !old[of(e)] {
			began = e.At()
			break
		}
	}
	if began.IsZero() {
		return c, false
	}
	reached, from := int64(0), int64(0)
	for _, e := range steps {
		if old[of(e)] && e.At().Before(began) {
			reached, c.last = max(reached, e.Step), e.At()
		}
	}
	done := map[int]bool{}
	for _, e := range steps {
		if old[of(e)] {
			continue
		}
		if from == 0 || e.Step <= from {
			from = e.Step
		}
		if e.Step == reached+1 {
			done[e.Rank], c.first = true, lives.Later(c.first, e.At())
		}
	}
	c.again = max(0, reached+1-from)
	return c, len(done) == world
}

// accounted compares the samples of all steps with those of an undisturbed run, in which each sample has its turn once: how many took part
// again, and how many never. Of a step that was done again, the last processes count, because the state is theirs. The newest steps, which
// not all ranks have finished, do not count.
func accounted(steps []lives.Event) (repeated, skipped int64) {
	ranks := map[int64]map[int]lives.Event{}
	for _, e := range steps { // in order of time
		if worldOf(ranks[e.Step]) != e.World {
			ranks[e.Step] = map[int]lives.Event{}
		}
		ranks[e.Step][e.Rank] = e
	}
	whole := int64(0)
	for step, s := range ranks {
		if len(s) == worldOf(s) {
			whole = max(whole, step)
		}
	}
	turns, end := map[int64]int64{}, int64(0)
	for step, s := range ranks {
		if step > whole {
			continue
		}
		for _, e := range shares(s) {
			for i := range e.Count {
				turns[e.First+i]++
			}
			end = max(end, e.First+e.Count)
		}
	}
	for _, n := range turns {
		repeated += n - 1
	}
	return repeated, end - int64(len(turns))
}

// worldOf is the number of ranks that a step had, by the events of those that finished it.
func worldOf(step map[int]lives.Event) int {
	for _, e := range step {
		return e.World
	}
	return 0
}

// shares returns the samples of all ranks of a step. Of a rank that died between the step and its line there is no event: the others cannot
// have finished the step without its share, which follows from theirs, because all shares of a step are equal.
func shares(step map[int]lives.Event) (out []lives.Event) {
	known := step[slices.Min(slices.Collect(maps.Keys(step)))]
	for rank := range known.World {
		e, ok := step[rank]
		if !ok {
			e = lives.Event{First: known.First + int64(rank-known.Rank)*known.Count, Count: known.Count}
		}
		out = append(out, e)
	}
	return out
}

// results has the samples of all cases.
type results struct{ *figure.Set }

func newResults() *results { return &results{figure.NewSet(benchName)} }

// lost records how a system went on after it lost a pod, or a rank, at a time.
func (r *results) lost(system string, at, detected time.Time, c change) {
	add := func(metric string, from, to time.Time) { r.Add(caseLost, system, metric, "s", to.Sub(from).Seconds()) }
	add(lostToStep, at, c.first)
	add(lostToDetected, at, detected)
	add(detectedToStep, detected, c.first)
	r.Add(caseLost, system, again, "steps", float64(c.again))
}

// joined records how a system took a pod in whose process began at a time.
func (r *results) joined(system string, at time.Time, c change) {
	r.Add(caseJoined, system, joinedToStep, "s", c.first.Sub(at).Seconds())
	r.Add(caseJoined, system, stall, "s", c.first.Sub(c.last).Seconds())
	r.Add(caseJoined, system, again, "steps", float64(c.again))
}

// account records the samples of a whole job.
func (r *results) account(system string, steps []lives.Event) {
	twice, never := accounted(steps)
	r.Add(caseBoth, system, repeated, "samples", float64(twice))
	r.Add(caseBoth, system, skipped, "samples", float64(never))
}

// vsBest compares with the best of the other launchers.
const vsBest = "_vs_best_other"

// figures are the rows, with Holdfast's as multiples of the limit and of the best other launcher.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	mine := figure.Key{Case: caseLost, System: systemHoldfast, Metric: detectedToStep}
	limit := figure.Key{Case: caseLost, System: systemLimit, Metric: detectedToStep}
	out = append(out, r.Ratio(mine, limit, detectedToStep+"_vs_limit", figure.Times)...)
	for _, k := range []figure.Key{mine, {Case: caseJoined, System: systemHoldfast, Metric: stall}} {
		var best []figure.Figure
		for _, other := range []string{systemTorchrun, systemDLRover} {
			row := r.Ratio(k, figure.Key{Case: k.Case, System: other, Metric: k.Metric}, k.Metric+vsBest, figure.Times)
			if len(best) == 0 || len(row) > 0 && row[0].Value > best[0].Value {
				best = row
			}
		}
		out = append(out, best...)
	}
	return out
}

// goals returns the goals of what was measured.
func (r *results) goals() (out []figure.Goal) {
	add := func(kase, metric string, bound float64, each bool) {
		out = append(out, figure.Goal{Key: figure.Key{Case: kase, System: systemHoldfast, Metric: metric}, Bound: bound, Each: each})
	}
	has := func(kase, system, metric string) bool { return len(r.Samples(kase, system, metric)) > 0 }
	if has(caseLost, systemHoldfast, detectedToStep) {
		add(caseLost, detectedToStep+"_vs_limit", 1.5, false)
		if has(caseLost, systemTorchrun, detectedToStep) || has(caseLost, systemDLRover, detectedToStep) {
			add(caseLost, detectedToStep+vsBest, 0.1, false)
		}
	}
	if has(caseJoined, systemHoldfast, stall) {
		add(caseJoined, stall, 2, false)
		add(caseJoined, again, 0, true)
		add(caseBoth, repeated, 0, true)
		add(caseBoth, skipped, 0, true)
	}
	return out
}
