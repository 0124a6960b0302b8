package check

import (
	"fmt"
	"slices"
)

// trials returns the trials of a round, which depend on the results of earlier rounds only.
func (j *judge) trials(r Round) []Trial {
	switch r {
	case Alone:
		all := make([]Trial, len(j.pods))
		for i := range all {
			all[i] = Trial{A: i, B: -1}
		}
		return all
	case Neighbours:
		return j.neighbours()
	case Remaining:
		return j.remaining()
	case Again:
		return j.again()
	case AgainSecond:
		return j.second
	case Confirm:
		return j.confirm()
	}
	return nil
}

// neighbours pairs the pods in placement order. Where nodes have several pods, each of the first half is paired with one of the second, so
// that data is exchanged between nodes.
func (j *judge) neighbours() []Trial {
	var out []Trial
	half, shared := len(j.pods)/2, j.sharesNodes()
	for k := range half {
		a, b := 2*k, 2*k+1
		if shared {
			a, b = k, k+half
		}
		if !j.unpaired(a) && !j.unpaired(b) {
			out = append(out, Trial{Round: Neighbours, A: a, B: b})
		}
	}
	return out
}

// sharesNodes reports whether two pods in succession are on one node.
func (j *judge) sharesNodes() bool {
	for i := 1; i < len(j.pods); i++ {
		if n := j.pods[i].Node; n != "" && n == j.pods[i-1].Node {
			return true
		}
	}
	return false
}

// remaining pairs the pods without a neighbour; the last of an odd number is tried with a pod that passed, or else with one of the
// first pair.
func (j *judge) remaining() []Trial {
	var left []int
	for i := range j.pods {
		if !j.unpaired(i) && j.of[i].tried == 0 {
			left = append(left, i)
		}
	}
	var out []Trial
	for len(left) > 1 {
		out, left = append(out, Trial{Round: Remaining, A: left[0], B: left[1]}), left[2:]
	}
	if len(left) == 0 || len(j.pairs) == 0 {
		return out
	}
	with := j.pairs[0].a
	for _, p := range j.pairs {
		if p.clean() {
			with = p.a
			break
		}
	}
	return append(out, Trial{Round: Remaining, A: left[0], B: with})
}

// again gives each pod that has not passed a partner that has; a partner serves at most twice, in two rounds.
func (j *judge) again() []Trial {
	proven, suspects := j.split()
	if len(suspects) == 0 {
		return nil
	}
	if len(proven) == 0 && len(suspects) == 3 {
		return j.third(suspects)
	}
	if len(proven) == 0 && len(suspects) <= 2 {
		return nil // there is no further pod
	}
	if len(suspects) > 2*len(proven) {
		j.verdict.Systemic = j.unproven(suspects, proven)
		return nil
	}
	var out []Trial
	j.match(suspects, append(slices.Clone(proven), proven...), func(at, s, p int) {
		if at < len(proven) {
			out = append(out, Trial{Round: Again, A: s, B: p})
		} else {
			j.second = append(j.second, Trial{Round: AgainSecond, A: s, B: p})
		}
	})
	return out
}

// third returns the pair of three pods that was not tried.
func (j *judge) third(three []int) []Trial {
	for i, a := range three {
		for _, b := range three[i+1:] {
			if !j.tried(a, b) {
				return []Trial{{Round: Again, A: a, B: b}}
			}
		}
	}
	return nil
}

// confirm gives a further partner to each pod that has not passed and against which less than two passed partners speak.
func (j *judge) confirm() []Trial {
	proven, suspects := j.split()
	suspects = slices.DeleteFunc(suspects, func(i int) bool { bad, _ := j.against(i); return len(bad) != 1 })
	var out []Trial
	j.match(suspects, proven, func(_, s, p int) { out = append(out, Trial{Round: Confirm, A: s, B: p}) })
	return out
}

// split returns the pods that passed with a partner and those that did not; pods that take no part in pairs are neither.
func (j *judge) split() (proven, suspects []int) {
	for i := range j.pods {
		switch {
		case j.unpaired(i):
		case j.of[i].passed > 0:
			proven = append(proven, i)
		default:
			suspects = append(suspects, i)
		}
	}
	return proven, suspects
}

// match gives each suspect the first unused partner with which it was not tried.
func (j *judge) match(suspects, partners []int, give func(at, suspect, partner int)) {
	used, first := make([]bool, len(partners)), 0
	for _, s := range suspects {
		for at := first; at < len(partners); at++ {
			if !used[at] && !j.tried(s, partners[at]) {
				used[at] = true
				give(at, s, partners[at])
				break
			}
		}
		for first < len(used) && used[first] {
			first++
		}
	}
}

func (j *judge) tried(a, b int) bool {
	return slices.ContainsFunc(j.of[a].pairs(), func(k int32) bool { return j.pairs[k].other(a) == b })
}

// pairFailed reports whether two pods were tried together and answered.
func (j *judge) pairFailed(two []int) bool {
	return slices.ContainsFunc(j.of[two[0]].pairs(), func(k int32) bool {
		return j.pairs[k].other(two[0]) == two[1] && j.pairs[k].outcome == Failed
	})
}

// markSlow marks results that are slower than usual for their model.
func (j *judge) markSlow(trials []Trial, results []result) {
	if len(trials) == 0 {
		return
	}
	single := trials[0].B < 0
	speeds := map[string][]float64{}
	for i, t := range trials {
		if m, ok := j.model(t); ok && results[i].outcome == Passed && results[i].speed > 0 {
			speeds[m] = append(speeds[m], results[i].speed)
		}
	}
	medians := map[string]float64{}
	for m, of := range speeds {
		medians[m] = j.usually(m, single, of)
	}
	share := slowPair
	if single {
		share = slowAlone
	}
	for i, t := range trials {
		m, ok := j.model(t)
		if r := &results[i]; ok && r.outcome == Passed && r.speed > 0 && r.speed < share*medians[m] {
			r.slow, r.text = true, fmt.Sprintf("it ran at %.0f %% of the usual speed", 100*r.speed/medians[m])
		}
	}
}

// usually returns the usual speed of a model; 0: unknown.
func (j *judge) usually(model string, single bool, speeds []float64) float64 {
	u := j.usual[model]
	if single && u.Alone > 0 {
		return u.Alone
	}
	if !single && len(j.speeds[model]) > 0 {
		speeds = j.speeds[model] // of the round with most pairs
	}
	switch {
	case len(speeds) >= leastSpeeds:
	case single:
		return 0
	default:
		return u.Pair // measured between other pods: the gang's own pairs count first
	}
	slices.Sort(speeds)
	if !single && j.speeds[model] == nil {
		j.speeds[model] = speeds
	}
	return speeds[len(speeds)/2]
}

// model returns the model of a trial's pods; false: they differ.
func (j *judge) model(t Trial) (string, bool) {
	m := j.pods[t.A].Model
	return m, t.B < 0 || j.pods[t.B].Model == m
}
