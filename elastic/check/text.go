package check

import (
	"cmp"
	"fmt"
	"strings"
)

// conclude makes the verdict of all results.
func (j *judge) conclude() {
	if proven, suspects := j.split(); j.verdict.Systemic == "" && len(proven) == 0 && len(suspects) > 2 {
		j.verdict.Systemic = j.unproven(suspects, proven)
	}
	if j.verdict.Systemic != "" {
		j.verdict.Findings = j.own()
		return
	}
	named := 0
	for i := range j.pods {
		f := j.finding(i)
		if j.doubted(f) {
			named++
		}
		if f.Kind != Good {
			j.verdict.Findings = append(j.verdict.Findings, f)
		}
	}
	if named > j.most() {
		first := ""
		for _, f := range j.verdict.Findings {
			if j.doubted(f) {
				first = f.Evidence
				break
			}
		}
		j.verdict = Verdict{
			Systemic: fmt.Sprintf("%d of %d pods failed, more than the %d that a check names: the cause is not one node; %s", named, len(j.pods), j.most(), first),
			Findings: j.own(),
		}
		return
	}
	if _, suspects := j.split(); named == 0 && len(suspects) == 2 && j.pairFailed(suspects) && len(j.pods) == 2 {
		j.first(suspects)
	}
	j.paths()
}

// doubted reports whether a finding speaks for one that is not one pod's, if there are many like it.
func (j *judge) doubted(f Finding) bool {
	return f.Kind == Guilty || f.Kind == ComputeWrong && !j.proven(f.Pod)
}

// own returns what stands whatever pairs show: the findings about pods that computed wrong results, however many, because these must not
// train, and about those that failed alone, unless these are too many themselves.
func (j *judge) own() (out []Finding) {
	many := j.doubtful() > j.most()
	for i := range j.pods {
		if j.computesWrong(i) || j.failedAlone(i) && !many {
			out = append(out, j.finding(i))
		}
	}
	return out
}

// finding returns the verdict about one pod.
func (j *judge) finding(i int) Finding {
	switch bad, slow := j.against(i); {
	case j.alone[i].outcome == Wrong:
		return Finding{i, ComputeWrong, fmt.Sprintf("%s: %s", j.name(i), j.alone[i].text)}
	case j.alone[i].outcome == Late:
		return Finding{i, Unproven, fmt.Sprintf("%s was not tried, which speaks for slow storage: %s", j.name(i), j.alone[i].text)}
	case j.failedAlone(i):
		return Finding{i, Guilty, fmt.Sprintf("%s failed alone: %s", j.name(i), j.alone[i].text)}
	case j.of[i].passed == 0 && len(bad)-slow >= 2:
		return Finding{i, Guilty, fmt.Sprintf("%s failed with %s", j.name(i), j.evidence(i, bad))}
	case j.of[i].passed == 0 && len(bad) >= 2:
		return Finding{i, Slow, fmt.Sprintf("%s was slow with %s", j.name(i), j.evidence(i, bad))}
	case j.of[i].slow:
		return Finding{i, Slow, fmt.Sprintf("%s is slow alone: %s", j.name(i), j.alone[i].text)}
	case j.of[i].passed > 0 || len(j.pods) == 1 && j.alone[i].outcome == Passed:
		return Finding{i, Good, ""}
	}
	return Finding{i, Unproven, fmt.Sprintf("%s has not passed: %s", j.name(i), cmp.Or(j.evidence(i, j.of[i].pairs()), "it has no partner"))}
}

// against returns the trials of a pod that failed or were slow with partners that passed elsewhere, and how many of them were only slow.
func (j *judge) against(i int) (bad []int32, slow int) {
	for _, k := range j.of[i].pairs() {
		p := j.pairs[k]
		if p.clean() || p.unanswered() || j.of[p.other(i)].passed == 0 {
			continue
		}
		bad = append(bad, k)
		if p.outcome == Passed {
			slow++
		}
	}
	return bad, slow
}

// first names the pod that is replaced first of two that failed only together.
func (j *judge) first(two []int) {
	one := two[1]
	if j.pods[two[0]].Accusations > j.pods[two[1]].Accusations {
		one = two[0]
	}
	for k := range j.verdict.Findings {
		if f := &j.verdict.Findings[k]; f.Pod == one {
			f.Kind = First
			f.Evidence = fmt.Sprintf("%s failed with %s; each passed alone, so that either may be at fault, and this one is replaced first", j.name(one), j.evidence(one, j.of[one].pairs()))
		}
	}
}

// paths notes pairs that did not pass while both pods passed elsewhere.
func (j *judge) paths() {
	for _, p := range j.pairs {
		if !p.clean() && !p.unanswered() && j.of[p.a].passed > 0 && j.of[p.b].passed > 0 {
			j.verdict.Paths = append(j.verdict.Paths, fmt.Sprintf("%s and %s did not pass together (%s), and both passed with others: the path between them", j.name(p.a), j.name(p.b), p.text))
		}
	}
}

// evidence lists the partners of trials, what happened, and with which pod each partner passed.
func (j *judge) evidence(i int, trials []int32) string {
	var out []string
	for _, k := range trials {
		p := j.pairs[k]
		o := p.other(i)
		text := fmt.Sprintf("%s (%s)", j.name(o), cmp.Or(p.text, "no answer"))
		if with := j.passedWith(o); with >= 0 {
			text += ", which passed with " + j.name(with)
		}
		out = append(out, text)
	}
	return strings.Join(out, "; and with ")
}

// passedWith returns a pod with which this one passed; -1: none.
func (j *judge) passedWith(i int) int {
	for _, k := range j.of[i].pairs() {
		if j.pairs[k].clean() {
			return j.pairs[k].other(i)
		}
	}
	return -1
}

// unproven says that too few pods passed to name one.
func (j *judge) unproven(suspects, proven []int) string {
	return fmt.Sprintf("%d of %d pods did not pass and %d did: the cause is not one node; %s", len(suspects), len(j.pods), len(proven), j.firstPair())
}

func (j *judge) firstPair() string {
	for _, p := range j.pairs {
		if p.outcome == Failed {
			return fmt.Sprintf("%s with %s: %s", j.name(p.a), j.name(p.b), p.text)
		}
	}
	return "no pair failed; answers are missing, or pairs were slow"
}

func (j *judge) name(i int) string {
	if p := j.pods[i]; p.Node != "" {
		return fmt.Sprintf("pod %s on node %s", p.Name, p.Node)
	}
	return "pod " + j.pods[i].Name
}
