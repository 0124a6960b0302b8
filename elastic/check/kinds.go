package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// backendDevices is the backend of a torch that sees devices.
const backendDevices = "nccl"

// ofOneKind splits the pods into those that can exchange bytes with each other, in placement order: pods that request the same devices,
// and of the others those whose torch uses the same backend. A pod without devices whose backend is unknown has that of all others.
func ofOneKind(pods []Pod) (out [][]int) {
	backends := map[string]bool{}
	for _, p := range pods {
		if p.Devices == "" && p.Backend != "" {
			backends[p.Backend] = true
		}
	}
	at := map[string]int{}
	for i, p := range pods {
		kind := "devices " + p.Devices
		if p.Devices == "" && len(backends) > 1 {
			kind = "backend " + p.Backend
			if p.Backend == "" {
				kind = "pod " + p.ID
			}
		}
		if _, known := at[kind]; !known {
			at[kind], out = len(out), append(out, nil)
		}
		out[at[kind]] = append(out[at[kind]], i)
	}
	return out
}

// judgeEach judges each kind of pods as a gang of its own.
func judgeEach(pods []Pod, all [][]int, usual map[string]Usual) Plan {
	out, said := Plan{Round: Rounds}, []string{}
	for _, of := range all {
		some := make([]Pod, len(of))
		for i, p := range of {
			some[i] = pods[p]
		}
		j := newJudge(some, usual)
		j.play(Alone, j.trials(Alone))
		plan := j.pairUp()
		for _, t := range plan.Trials {
			t.A, t.B = of[t.A], of[t.B]
			out.Trials = append(out.Trials, t)
		}
		out.Round = min(out.Round, plan.Round)
		for _, f := range plan.Verdict.Findings {
			f.Pod = of[f.Pod]
			out.Verdict.Findings = append(out.Verdict.Findings, f)
		}
		out.Verdict.Paths = append(out.Verdict.Paths, plan.Verdict.Paths...)
		if len(of) == 1 && j.alone[0].outcome == Passed {
			out.Verdict.Paths = append(out.Verdict.Paths, fmt.Sprintf("%s passed alone and was tried with no other pod: no other one has %s",
				j.name(0), cmp.Or(some[0].Devices, some[0].Backend, "its backend, which is unknown")))
		}
		if plan.Verdict.Systemic != "" {
			said = append(said, plan.Verdict.Systemic)
		}
	}
	if len(out.Trials) > 0 {
		return Plan{Round: out.Round, Trials: out.Trials}
	}
	slices.SortFunc(out.Verdict.Findings, func(a, b Finding) int { return cmp.Compare(a.Pod, b.Pod) })
	out.Verdict.Systemic = strings.Join(said, "; ")
	return out
}

// lacksDevices returns what is wrong with a pod whose torch sees no device while that of another pod with the same requests does.
func (j *judge) lacksDevices(i int) string {
	p := j.pods[i]
	if p.Devices == "" || p.Backend == "" || p.Backend == backendDevices || len(j.devices[p.Devices]) == 0 {
		return ""
	}
	return fmt.Sprintf("it requests %s, and torch uses %s in it and %s in %s", p.Devices, p.Backend, backendDevices, j.devices[p.Devices])
}
