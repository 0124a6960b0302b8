package check

// Limits of a check.
const (
	// MaxAttempts is how often a trial is made until it counts as unanswered. Attempts have the numbers from 1 to it, and those above it, up
	// to LastAttempt, if their imports get more time: so an answer says whether they had it.
	MaxAttempts, LastAttempt = 5, 2 * MaxAttempts
	// mostReplaced and replacedShare bound the pods that one check replaces: a fault of the check itself must not use up nodes.
	mostReplaced, replacedShare = 3, 4
	// slowAlone and slowPair are the shares of the usual speed below which a pod or a pair is slow.
	slowAlone, slowPair = 0.9, 0.7
	// leastSpeeds is the least number of speeds of one gang that have a median.
	leastSpeeds = 4
)

// Round is one round of trials.
type Round int

const (
	// Alone: each pod by itself.
	Alone Round = iota
	// Neighbours: pods 0 and 1, 2 and 3, and so on.
	Neighbours
	// Remaining: pods without a neighbour, because their number is odd or the neighbour failed alone.
	Remaining
	// Again and AgainSecond: each pod that has not passed, with one that has.
	Again
	AgainSecond
	// Confirm: pods against which only one passed partner speaks, with another one.
	Confirm
	// Rounds is their number.
	Rounds
)

// Outcome is what one pod answers about one trial.
type Outcome int

const (
	// Unanswered: there is no answer yet.
	Unanswered Outcome = iota
	// Passed: all parts gave the right result.
	Passed
	// Failed: a part failed, or did not end before its deadline.
	Failed
	// Wrong: an arithmetic result differs from the known one.
	Wrong
	// Absent: the partner did not come.
	Absent
	// Late: the imports did not end in their time, which speaks for slow storage and against no pod.
	Late
	// Lost: the agent or its process was ended, or gave no answer in time.
	Lost
)

// Answer is what one pod says about its trial of one round.
type Answer struct {
	Round   Round
	Attempt int
	// Partner is the ID of the other pod; "": alone.
	Partner string
	Outcome Outcome
	// Text is what failed, for users.
	Text string
	// Speed is of the multiplication or the exchange, in any unit that is the same for all pods; 0: not measured.
	Speed float64
}

// Pod is one pod of the gang.
type Pod struct {
	ID, Name, Node string
	// Devices names the devices that it requests, and Backend is the one in which its torch exchanges bytes, as it answered alone; "": none,
	// and unknown. Pods are paired only with those of their kind.
	Devices, Backend string
	// Model is the type of its devices, as it answered alone; speeds of different models are not compared.
	Model string
	// Accusations says how often other checks named its node.
	Accusations int
	// Answers has at most one per round.
	Answers []Answer
}

// Usual are usual speeds of one model; 0: unknown, then the median of the gang counts.
type Usual struct{ Alone, Pair float64 }

// Trial is one trial to be made now.
type Trial struct {
	Round   Round
	Attempt int
	// A and B are indices of pods; B is -1 in round Alone.
	A, B int
	// Longer: the imports did not end in their time, and get more.
	Longer bool
}

// Kind is the verdict about one pod.
type Kind int

const (
	// Unproven: the pod has not passed with a partner, and too little speaks against it.
	Unproven Kind = iota
	// Good: the pod passed.
	Good
	// ComputeWrong: its arithmetic is wrong.
	ComputeWrong
	// Guilty: it failed alone, or with two partners that passed elsewhere.
	Guilty
	// Slow: it gave the right results, slower than others of its model.
	Slow
	// First: it failed only together with the only other pod; it is the first to replace.
	First
)

// Finding is the verdict about one pod with its evidence.
type Finding struct {
	Pod      int
	Kind     Kind
	Evidence string
}

// Verdict is the result of a check.
type Verdict struct {
	// Findings are those of pods that are not Good, in placement order.
	Findings []Finding
	// Systemic is why no pod is named of the gang, or of one kind of pods; "": pods are named.
	Systemic string
	// Paths are pairs that failed or were slow together while both passed elsewhere, and pods that could be tried with no other one.
	Paths []string
}

// MostReplaced is the largest number of pods that one check of so many replaces.
func MostReplaced(pods int) int { return max(mostReplaced, pods/replacedShare) }

// Plan is the present state of a check: trials to be made now, or the verdict if there are none.
type Plan struct {
	Round   Round
	Trials  []Trial
	Verdict Verdict
}

// Over reports whether the verdict is final.
func (p *Plan) Over() bool { return len(p.Trials) == 0 }

// Replace returns the pods that must not run: those at fault.
func (v *Verdict) Replace() []Finding {
	var out []Finding
	for _, f := range v.Findings {
		if f.Kind == ComputeWrong || f.Kind == Guilty || f.Kind == First {
			out = append(out, f)
		}
	}
	return out
}
