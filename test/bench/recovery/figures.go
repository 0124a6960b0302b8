package main

import (
	"strings"

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

// The metrics that the table and the goals use.
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
	// standbyVain is the time spent waiting for standbys that never were ready.
	standbyVain = "standby_waited_in_vain_s"
	// earlyKills counts kills before every rank's standby was ready; earlyToStep is their time to the first new step.
	earlyKills  = "kills_before_standby"
	earlyToStep = "kill_before_standby_to_step"
	// oneProcess is a new process alone on the machine: it imports, joins a group of one and takes a step.
	oneProcess = "one_process_alone"
)

// withClient is the case that a plain script's case is compared with: the same ranks on one pod under the same load; "" for other cases.
func withClient(kase string) string {
	if load, ok := strings.CutPrefix(kase, plain.name+", "); ok {
		return onePod.name + ", " + load
	}
	return ""
}

// results has the samples of all cases.
type results struct{ *figure.Set }

// early records a kill that came before its standbys.
func (r *results) early(kase string, stepped float64) {
	r.Add(kase, systemHoldfast, earlyToStep, "s", stepped)
}

func newResults() *results { return &results{figure.NewSet(benchName)} }

// limits are the lower bounds of systems: what a launcher with ready processes, or without, cannot beat.
var limits = map[string]string{systemHoldfast: systemLimit, systemCold: systemLimitCold, systemTorchrun: systemLimitCold}

// figures are the rows: every median, the kills before standbys, then every ratio to torchrun, the limits and the script with the client.
func (r *results) figures() []figure.Figure {
	out := r.Figures()
	for _, kase := range r.Cases() {
		key := func(system, metric string) figure.Key { return figure.Key{Case: kase, System: system, Metric: metric} }
		if n := len(r.Samples(kase, systemHoldfast, killToStep)); n > 0 {
			early := len(r.Samples(kase, systemHoldfast, earlyToStep))
			out = append(out, r.Figure(key(systemHoldfast, earlyKills), float64(early), "kills", n+early))
		}
		for _, system := range []string{systemLimit, systemLimitCold, systemHoldfast, systemCold} {
			out = append(out, r.Ratio(key(system, killToStep), key(systemTorchrun, killToStep), killToStep+"_vs_torchrun", figure.Times)...)
		}
		for _, system := range []string{systemHoldfast, systemCold, systemTorchrun} {
			out = append(out, r.Ratio(key(system, killToStep), key(limits[system], killToStep), killToStep+"_vs_"+limits[system], figure.Times)...)
		}
		for _, metric := range []string{killToStep, standbyFirst} {
			client := figure.Key{Case: withClient(kase), System: systemHoldfast, Metric: metric}
			out = append(out, r.Ratio(key(systemHoldfast, metric), client, metric+"_vs_client", figure.Times)...)
		}
	}
	return out
}

// standbyGoal is the goal, in seconds, for a warm standby of every rank in a new job, however busy its cores are.
const standbyGoal = 20

// goals returns the goals of the measured cases.
func (r *results) goals() (all []figure.Goal) {
	for _, kase := range r.Cases() {
		add := func(system, metric string, bound float64) {
			all = append(all, figure.Goal{Key: figure.Key{Case: kase, System: system, Metric: metric}, Bound: bound})
		}
		if withClient(kase) == "" {
			add(systemHoldfast, killToStep+"_vs_torchrun", 0.15)
			add(systemCold, killToStep+"_vs_torchrun", 1.1)
		} else { // a script without the client
			add(systemHoldfast, killToStep+"_vs_torchrun", 0.07)
			add(systemHoldfast, killToStep+"_vs_client", 1.5)
			add(systemHoldfast, standbyFirst+"_vs_client", 1.25)
		}
		for _, metric := range []string{standbyFirst, standbyVain} { // a case has one of them, or follows one that has
			if len(r.Samples(kase, systemHoldfast, metric)) > 0 {
				add(systemHoldfast, metric, standbyGoal)
			}
		}
	}
	return all
}
