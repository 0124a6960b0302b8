package check

import "fmt"

// Judge returns the trials that must be made now, or the verdict. The pods are in placement order; usual may be nil. Once all pods are
// tried alone, those that can exchange bytes with each other are judged as a gang of their own.
func Judge(pods []Pod, usual map[string]Usual) Plan {
	j := newJudge(pods, usual)
	if open := j.play(Alone, j.trials(Alone)); len(open) > 0 {
		return Plan{Round: Alone, Trials: open}
	}
	all := ofOneKind(pods)
	if len(all) == 1 || j.verdict.Systemic != "" {
		return j.pairUp()
	}
	return judgeEach(pods, all, usual)
}

func newJudge(pods []Pod, usual map[string]Usual) *judge {
	j := &judge{
		pods: pods, usual: usual, of: make([]record, len(pods)), alone: make([]result, len(pods)),
		speeds: map[string][]float64{}, devices: map[string]string{},
	}
	for i, p := range pods {
		if _, known := j.devices[p.Devices]; !known && p.Backend == backendDevices {
			j.devices[p.Devices] = j.name(i)
		}
	}
	return j
}

// pairUp returns the trials of pairs that must be made now, or the verdict. All pods were tried alone.
func (j *judge) pairUp() Plan {
	for r := Neighbours; r < Rounds && j.verdict.Systemic == ""; r++ {
		if open := j.play(r, j.trials(r)); len(open) > 0 {
			return Plan{Round: r, Trials: open}
		}
	}
	j.conclude()
	return Plan{Round: Rounds, Verdict: j.verdict}
}

// judge is one call of Judge.
type judge struct {
	pods    []Pod
	usual   map[string]Usual
	alone   []result
	of      []record
	pairs   []pair
	second  []Trial              // of round AgainSecond
	wrong   int                  // how many pods computed wrong results
	devices map[string]string    // the first pod whose torch sees devices, by what pods request
	speeds  map[string][]float64 // of pairs, by model, sorted
	verdict Verdict
}

// record is the trials of one pod.
type record struct {
	pair   [2 * Rounds]int32 // indices of judge.pairs
	tried  int
	passed int  // how many of them passed
	slow   bool // alone
}

func (r *record) pairs() []int32 { return r.pair[:r.tried] }

// pair is a trial of two pods with its result.
type pair struct {
	a, b int
	result
}

func (p pair) other(i int) int { return p.a + p.b - i }

// result is what the answers about one trial say together; outcome Lost: all attempts were lost; Late: imports did not end, even in the
// longer time.
type result struct {
	outcome Outcome
	slow    bool
	speed   float64
	text    string
}

func (r result) clean() bool { return r.outcome == Passed && !r.slow }

// unanswered reports whether the trial speaks against no pod, because its answers are lost or imports took too long.
func (r result) unanswered() bool { return r.outcome == Lost || r.outcome == Late }

// play notes the results of a round and returns its trials that are not answered.
func (j *judge) play(r Round, trials []Trial) (open []Trial) {
	results := make([]result, len(trials))
	for i, t := range trials {
		var over bool
		if results[i], t, over = j.answered(t); !over {
			open = append(open, t)
		}
	}
	if len(open) > 0 {
		return open
	}
	j.markSlow(trials, results)
	for i, t := range trials {
		if r == Alone {
			if results[i].outcome == Wrong {
				j.wrong++
			}
			if text := j.lacksDevices(t.A); results[i].outcome == Passed && text != "" {
				results[i].outcome, results[i].text = Failed, text
			}
			j.alone[t.A], j.of[t.A].slow = results[i], results[i].slow
			continue
		}
		for _, p := range []int{t.A, t.B} {
			o := &j.of[p]
			o.pair[o.tried], o.tried = int32(len(j.pairs)), o.tried+1
			if results[i].clean() {
				o.passed++
			}
		}
		j.pairs = append(j.pairs, pair{t.A, t.B, results[i]})
	}
	if faults := j.doubtful(); r == Alone && faults > j.most() {
		j.verdict.Systemic = fmt.Sprintf("%d of %d pods failed alone, more than a check names: the cause is not one node; %s", faults, len(j.pods), j.firstAlone())
	}
	return nil
}

// answered returns the result of a trial, or the attempt that must be made or answered now.
func (j *judge) answered(t Trial) (result, Trial, bool) {
	if t.B < 0 {
		a, _ := j.pods[t.A].answer(t.Round, "")
		t.Attempt = max(a.Attempt, 1)
		t.Longer = t.Attempt > MaxAttempts
		switch a.Outcome {
		case Unanswered:
			return result{}, t, false
		case Late:
			return late(a, t)
		case Lost, Absent:
			return lost(t)
		default:
			return result{outcome: a.Outcome, speed: a.Speed, text: a.Text}, t, true
		}
	}
	a, _ := j.pods[t.A].answer(t.Round, j.pods[t.B].ID)
	b, _ := j.pods[t.B].answer(t.Round, j.pods[t.A].ID)
	t.Attempt = max(a.Attempt, b.Attempt, 1)
	t.Longer = t.Attempt > MaxAttempts
	if a.Attempt < t.Attempt {
		a = Answer{}
	}
	if b.Attempt < t.Attempt {
		b = Answer{}
	}
	switch {
	case a.Outcome == Unanswered || b.Outcome == Unanswered:
		return result{}, t, false
	case a.Outcome == Passed && b.Outcome == Lost || a.Outcome == Lost && b.Outcome == Passed:
		// Who passes has seen the other's data and its confirmation.
	case a.Outcome == Late:
		return late(a, t)
	case b.Outcome == Late:
		return late(b, t)
	case a.Outcome == Lost || b.Outcome == Lost:
		return lost(t)
	}
	return both(a, b), t, true
}

// lost has a trial repeated whose answers are lost.
func lost(t Trial) (result, Trial, bool) {
	over := t.Attempt%MaxAttempts == 0
	t.Attempt++
	return result{outcome: Lost}, t, over
}

// late has a trial repeated with more time for the imports, which did not end; a second time that is its result.
func late(a Answer, t Trial) (result, Trial, bool) {
	over := t.Longer
	if !over {
		t.Attempt, t.Longer = min(t.Attempt+1+MaxAttempts, LastAttempt), true
	}
	return result{outcome: Late, text: a.Text}, t, over
}

// both returns what two answers say together; the slower speed counts.
func both(a, b Answer) result {
	out := result{outcome: Passed, speed: a.Speed}
	if a.Speed == 0 || b.Speed > 0 && b.Speed < a.Speed {
		out.speed = b.Speed
	}
	for _, x := range []Answer{b, a} {
		if x.Outcome != Passed && x.Outcome != Lost {
			out.outcome = Failed
			if out.text == "" || x.Outcome != Absent {
				out.text = x.Text
			}
		}
	}
	return out
}

// answer returns the pod's answer about a round with a partner.
func (p *Pod) answer(r Round, partner string) (Answer, bool) {
	for _, a := range p.Answers {
		if a.Round == r && a.Partner == partner {
			return a, true
		}
	}
	return Answer{}, false
}

// failedAlone reports whether a pod is at fault by its own answer.
func (j *judge) failedAlone(i int) bool {
	return j.alone[i].outcome == Failed || j.alone[i].outcome == Wrong
}

// unpaired reports whether a pod takes no part in pairs: it failed alone, or imports so slowly that a partner would wait in vain.
func (j *judge) unpaired(i int) bool { return j.failedAlone(i) || j.alone[i].outcome == Late }

// most is the largest number of pods that a check names for anything but wrong results.
func (j *judge) most() int { return max(1, len(j.pods)/4) }

// proven reports whether a pod is replaced for its wrong results, which need no other proof: up to as many pods are as a check replaces.
func (j *judge) proven(i int) bool { return j.computesWrong(i) && j.wrong <= MostReplaced(len(j.pods)) }

// computesWrong reports whether a pod computed wrong results, and others right ones. If no pod of several computes right, the fault may be
// one of the check.
func (j *judge) computesWrong(i int) bool {
	return j.alone[i].outcome == Wrong && (j.wrong < len(j.pods) || j.wrong == 1)
}

// doubtful is the number of pods that failed alone without proof.
func (j *judge) doubtful() (n int) {
	for i := range j.pods {
		if j.failedAlone(i) && !j.proven(i) {
			n++
		}
	}
	return n
}

func (j *judge) firstAlone() string {
	for i := range j.pods {
		if j.failedAlone(i) {
			return fmt.Sprintf("%s: %s", j.name(i), j.alone[i].text)
		}
	}
	return ""
}
