package elastic

import (
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/check"
)

// Nodes remember which checks they passed, of any gang, with the speeds. A check begins once that is known, or was not answered in time.

// nodes is what is known of the nodes of a gang that forms.
type nodes struct {
	known NodesKnown
	// askedAt is when it was asked for; waits: the answer is due.
	askedAt time.Time
	waits   bool
}

// nodesWithin is how long a check waits for the answer.
const nodesWithin = 10 * time.Second

// nodesKnown reports whether the check may begin, and queries what is known of the nodes.
func (s *State) nodesKnown(now time.Time) bool {
	n := &s.run.forming.nodes
	if n.askedAt.IsZero() {
		names := []string{}
		for _, m := range s.members.Each {
			if node := m.Pod().Node; node != "" {
				names = append(names, node)
			}
		}
		slices.Sort(names)
		n.askedAt, n.waits = now, true
		s.emit(LookupNodes{slices.Compact(names)})
	}
	n.waits = n.waits && now.Sub(n.askedAt) < nodesWithin
	return !n.waits
}

// noteNodes takes the answer, if a check waits for it.
func (s *State) noteNodes(e NodesKnown) {
	if f := s.run.forming; f != nil && f.nodes.waits {
		f.nodes.known, f.nodes.waits = e, false
	}
}

// mayBeSkipped reports whether the check before the first generation is needless: every node passed an earlier one.
func (s *State) mayBeSkipped() bool {
	known := s.run.forming.nodes.known.Nodes
	for _, m := range s.members.Each {
		if !known[m.Pod().Node].Passed {
			return false
		}
	}
	return s.generation.Number == 0 && s.supervision.NodeCheck == CheckUnlessPassed
}

// skipCheck records that no pod is tried.
func (s *State) skipCheck(now time.Time) {
	c := Check{Before: s.generation.Number + 1, Began: now, Ended: now, Result: CheckSkipped}
	c.note("each node passed a check within 24 h, and no gang has suspected it in that time")
	s.Record.Check = c
	s.emit(Checked{Result: c.Result})
	s.emit(EmitEvent{Notice{Reason: NoticeNodeCheck, Message: c.Describe(s.members.Parts())}})
}

// noDevice is the model of a pod that was tried without a device.
const noDevice = "cpu"

// passes returns the nodes all pods of which passed, and some pod of which exchanged data with a pod of another node. What a pod that
// requests no device says of devices does not count.
func (s *State) passes(pods []check.Pod, v *check.Verdict) (out []NodePass) {
	if v.Systemic != "" {
		return nil
	}
	bad := map[string]bool{"": true}
	for _, f := range v.Findings {
		bad[pods[f.Pod].Node] = true
	}
	at, all := map[string]int{}, byID(pods)
	met := map[string]bool{}
	for _, p := range pods {
		met[p.Node] = met[p.Node] || metOthers(p, all)
	}
	for i, p := range pods {
		if bad[p.Node] || !met[p.Node] {
			continue
		}
		one := NodePass{Node: p.Node, Model: p.Model, Speed: speedOf(p, all)}
		if p.Devices == "" {
			one.Model, one.Speed = noDevice, check.Usual{}
		}
		if one.Model != noDevice && one.Model != "" {
			one.Devices = s.members.At(s.tried(i)).Report().Ranks
		}
		k, has := at[p.Node]
		if !has {
			at[p.Node], out = len(out), append(out, one)
			continue
		}
		out[k].Devices += one.Devices
		if out[k].Model != one.Model {
			out[k].Model, out[k].Speed = "", check.Usual{} // there is no one speed of several models
		}
		out[k].Speed = check.Usual{Alone: min(out[k].Speed.Alone, one.Speed.Alone), Pair: min(out[k].Speed.Pair, one.Speed.Pair)}
	}
	return out
}

func byID(pods []check.Pod) map[string]check.Pod {
	all := make(map[string]check.Pod, len(pods))
	for _, p := range pods {
		all[p.ID] = p
	}
	return all
}

// metOthers reports whether a pod exchanged data with a pod of another node.
func metOthers(p check.Pod, all map[string]check.Pod) bool {
	return slices.ContainsFunc(p.Answers, func(a check.Answer) bool {
		o, known := all[a.Partner]
		return known && a.Outcome == check.Passed && o.Node != p.Node
	})
}

// speedOf returns the speed of a pod alone, and with its fastest partner of the same model on another node; 0: not measured.
func speedOf(p check.Pod, all map[string]check.Pod) (u check.Usual) {
	for _, a := range p.Answers {
		switch o, known := all[a.Partner]; {
		case a.Outcome != check.Passed:
		case a.Partner == "":
			u.Alone = a.Speed
		case known && o.Model == p.Model && o.Node != p.Node:
			u.Pair = max(u.Pair, a.Speed)
		}
	}
	return u
}

// Speeds are the speeds of the pods of one model in a check: the slowest and the median, in operations per second alone, and in bytes per
// second with a partner of the same model; 0: not measured.
type Speeds struct {
	Model              string
	Pods               int
	Alone, AloneMedian int64
	Pair, PairMedian   int64
}

// maxModels bounds Check.Speeds.
const maxModels = 4

// speedsOf returns the speeds of each model, by name.
func speedsOf(pods []check.Pod) (out []Speeds) {
	alone, pair, all := map[string][]float64{}, map[string][]float64{}, byID(pods)
	for _, p := range pods {
		u := speedOf(p, all)
		alone[p.Model] = append(alone[p.Model], u.Alone)
		pair[p.Model] = append(pair[p.Model], u.Pair)
	}
	for _, model := range slices.Sorted(maps.Keys(alone)) {
		one := Speeds{Model: model, Pods: len(alone[model])}
		one.Alone, one.AloneMedian = slowest(alone[model])
		one.Pair, one.PairMedian = slowest(pair[model])
		if model != "" && one.Alone+one.Pair > 0 && len(out) < maxModels {
			out = append(out, one)
		}
	}
	return out
}

// slowest returns the slowest and the median of the speeds that were measured.
func slowest(all []float64) (least, median int64) {
	all = slices.DeleteFunc(all, func(v float64) bool { return v <= 0 })
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return int64(all[0]), int64(all[len(all)/2])
}
