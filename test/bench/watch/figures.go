package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"holdfast.dev/holdfast/test/bench/figure"
)

// The systems: steps under Holdfast with the hook, in the same processes without it, and under torchrun. Control is the other half of
// torchrun's steps: both have no hook, so that the two differ by noise alone.
const (
	systemHoldfast = "holdfast"
	systemUnhooked = "unhooked"
	systemTorchrun = "torchrun"
	systemControl  = "control"
)

// kase is the only case.
const kase = "DDP over gloo, 2 ranks"

// ranks is how many ranks a job has.
const ranks = 2

// The metrics. over is between two systems: by how many per cent a step takes longer. most ends the upper end of that mean's 95 % interval.
const (
	stepMs        = "step_ms"
	stepCPU       = "step_cpu_ms"
	over          = "_over_"
	most          = "_most"
	agentCPU      = "agent_cpu"
	agentMemory   = "agent_memory"
	stillCPU      = "still_cpu_ms"
	agentStillCPU = "agent_still_cpu_ms"
)

// cost is what one step took: seconds, and processor seconds of all ranks together.
type cost struct{ wall, cpu float64 }

// group is the mean cost of a step of each system, measured in turns within seconds.
type group map[string]cost

// results has the samples of the rounds: their means, and the ratios of all groups.
type results struct {
	*figure.Set
	rounds [][]group
}

func newResults() *results { return &results{Set: figure.NewSet(benchName)} }

// agentsUse is what the agent's processes of a pod have used: processor seconds and bytes.
type agentsUse struct {
	cpu    float64
	memory uint64
}

// note records a round.
func (r *results) note(groups []group, before, after agentsUse, took time.Duration) {
	r.rounds = append(r.rounds, groups)
	for _, system := range []string{systemHoldfast, systemUnhooked, systemTorchrun} {
		var sum cost
		for _, g := range groups {
			sum.wall += g[system].wall / float64(len(groups))
			sum.cpu += g[system].cpu / float64(len(groups))
		}
		r.Add(kase, system, stepMs, "ms", 1000*sum.wall)
		r.Add(kase, system, stepCPU, "ms", 1000*sum.cpu/ranks)
	}
	r.Add(kase, systemHoldfast, agentCPU, percent, 100*(after.cpu-before.cpu)/took.Seconds())
	r.Add(kase, systemHoldfast, agentMemory, "MiB", float64(after.memory)/(1<<20))
}

// percent is the unit of shares of a step, and of one core.
const percent = "%"

// sides are the measures of a step.
var sides = []struct {
	metric string
	of     func(cost) float64
}{
	{stepMs, func(c cost) float64 { return c.wall }},
	{stepCPU, func(c cost) float64 { return c.cpu }},
}

// figures are the rows with the ratios. The same processes take steps with and without the hook: each group is a sample. Under torchrun
// other processes do, which differ from launch to launch: each round is one.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	for _, s := range sides {
		var hooked, control, rounds []float64
		for _, round := range r.rounds {
			var sum float64
			for _, g := range round {
				log := func(a, b string) float64 { return math.Log(s.of(g[a]) / s.of(g[b])) }
				hooked, control = append(hooked, log(systemHoldfast, systemUnhooked)), append(control, log(systemTorchrun, systemControl))
				sum += log(systemHoldfast, systemTorchrun)
			}
			rounds = append(rounds, sum/float64(len(round)))
		}
		out = append(out, r.ratio(systemHoldfast, s.metric+over+systemUnhooked, hooked)...)
		out = append(out, r.ratio(systemTorchrun, s.metric+over+systemControl, control)...)
		out = append(out, r.ratio(systemHoldfast, s.metric+over+systemTorchrun, rounds)...)
	}
	return out
}

// ratio returns the rows of a mean ratio, from its logarithms.
func (r *results) ratio(system, metric string, logs []float64) []figure.Figure {
	if len(logs) == 0 {
		return nil
	}
	mean, half := interval(logs)
	row := func(metric string, log float64) figure.Figure {
		return r.Figure(figure.Key{Case: kase, System: system, Metric: metric}, 100*math.Expm1(log), percent, len(logs))
	}
	out := []figure.Figure{row(metric, mean)}
	if len(logs) >= 3 {
		out = append(out, row(metric+most, mean+half))
	}
	return out
}

// summary is the last round, for users.
func (r *results) summary() string {
	last := func(system, metric string) float64 {
		all := r.Samples(kase, system, metric)
		return all[len(all)-1]
	}
	return fmt.Sprintf("a step takes %.3f ms with the hook, %.3f without, %.3f under torchrun; the agent %.2f %% of a core, %.1f MiB",
		last(systemHoldfast, stepMs), last(systemUnhooked, stepMs), last(systemTorchrun, stepMs),
		last(systemHoldfast, agentCPU), last(systemHoldfast, agentMemory))
}

// goals: the hook costs a step at most 0.5 %, by the upper end of the interval, and the agent of a pod 0.5 % of a core and 64 MiB.
func goals() (all []figure.Goal) {
	add := func(metric string, bound float64, each bool) {
		all = append(all, figure.Goal{Key: figure.Key{Case: kase, System: systemHoldfast, Metric: metric}, Bound: bound, Each: each})
	}
	add(stepMs+over+systemUnhooked+most, 0.5, false)
	add(stepCPU+over+systemUnhooked+most, 0.5, false)
	add(agentCPU, 0.5, false)
	add(agentMemory, 64, true)
	return all
}

// trim is the share of samples that a mean leaves out at each end. Other processes of the machine disturb single groups by far more than
// the hook costs.
const trim = 0.2

// interval returns the trimmed mean of samples, and half the width of its 95 % confidence interval: by the t distribution, from the
// variance of the winsorized samples (https://doi.org/10.1093/biomet/61.1.165).
func interval(samples []float64) (mean, half float64) {
	sorted := slices.Sorted(slices.Values(samples))
	out := int(trim * float64(len(sorted)))
	kept := sorted[out : len(sorted)-out]
	for _, x := range kept {
		mean += x / float64(len(kept))
	}
	if len(kept) < 2 {
		return mean, math.Inf(1)
	}
	for i := range out {
		sorted[i], sorted[len(sorted)-1-i] = kept[0], kept[len(kept)-1]
	}
	var center, squares float64
	for _, x := range sorted {
		center += x / float64(len(sorted))
	}
	for _, x := range sorted {
		squares += (x - center) * (x - center)
	}
	k := float64(len(kept))
	return mean, quantile(len(kept)-1) * math.Sqrt(squares/(k*(k-1)))
}

// quantiles has the 97.5 % quantile of the t distribution for 1 to 10 degrees of freedom.
var quantiles = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// quantile returns it for any degrees of freedom: above 10 by the first terms of its expansion about the normal distribution's.
func quantile(freedom int) float64 {
	if freedom <= len(quantiles) {
		return quantiles[freedom-1]
	}
	const z = 1.959964
	v := float64(freedom)
	return z + (math.Pow(z, 3)+z)/(4*v) + (5*math.Pow(z, 5)+16*math.Pow(z, 3)+3*z)/(96*v*v)
}

// groupOf returns the mean costs of a group's blocks.
func groupOf(blocks map[string][]answer) group {
	mean := func(all []answer, of func(answer) cost) (out cost) {
		for _, a := range all {
			out.wall += of(a).wall / float64(len(all))
			out.cpu += of(a).cpu / float64(len(all))
		}
		return out
	}
	hooked, bare := func(a answer) cost { return a.hooked }, func(a answer) cost { return a.bare }
	ours, theirs := blocks[systemHoldfast], blocks[systemTorchrun]
	return group{
		systemHoldfast: mean(ours, hooked), systemUnhooked: mean(ours, bare),
		systemTorchrun: mean(theirs, hooked), systemControl: mean(theirs, bare),
	}
}

// turns is the order of a group's blocks: each job once on the way there and once back, so that a drift favours none. Every second group
// begins with the other job.
func turns(number int) []string {
	a, b := systemHoldfast, systemTorchrun
	if number%2 == 1 {
		a, b = b, a
	}
	return []string{a, b, b, a}
}
