package elastic

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// Times of a trial. The first imports of a pod may read all of torch from slow storage, and imports that did not end get longerImports
// once. An agent that has not answered trialSlack after the trial's time has lost it.
const (
	firstImports, laterImports = time.Minute, 20 * time.Second
	longerImports              = 3 * time.Minute
	trialWithin                = 30 * time.Second
	trialSlack                 = 10 * time.Second
)

// NodeCheck is before which generations the pods of a gang are tried, alone and in pairs.
type NodeCheck int

const (
	// CheckNever: before none.
	CheckNever NodeCheck = iota
	// CheckSuspects: before one that follows a failure that hardware may have caused.
	CheckSuspects
	// CheckUnlessPassed: also before the first generation, unless every node of the gang passed a check before.
	CheckUnlessPassed
	// CheckFirst: also before the first generation.
	CheckFirst
)

// CheckResult is the result of a node check.
type CheckResult string

const (
	// CheckOrdered: a check is due before the generation, and has not begun.
	CheckOrdered CheckResult = "Ordered"
	// CheckUnderWay: agents make trials, or a pod that was named is being replaced.
	CheckUnderWay CheckResult = "UnderWay"
	// CheckPassed: all pods passed.
	CheckPassed CheckResult = "Passed"
	// CheckSkipped: no pod was tried, because every node passed an earlier check.
	CheckSkipped CheckResult = "Skipped"
	// CheckReplaced: pods were named and replaced, and all others and those in their place passed.
	CheckReplaced CheckResult = "Replaced"
	// CheckNoHealthyNode: a pod computes wrong results, and may not be replaced any more. The gang waits until the job wants no check.
	CheckNoHealthyNode CheckResult = "NoHealthyNode"
	// CheckWithdrawn: the job no longer wants it, and the generation begins.
	CheckWithdrawn CheckResult = "Withdrawn"
	// CheckInconclusive: answers are missing, or speak against no single pod. No pod is named for that, and the generation begins.
	CheckInconclusive CheckResult = "Inconclusive"
)

// Check is the newest node check, as users see it and as another coordinator continues it.
type Check struct {
	// Before is the generation that it precedes; 0: there was none.
	Before       int64
	Began, Ended time.Time // Ended is zero while it is under way
	Result       CheckResult
	// Replaced is the number of pods that it named, Named the first of them, Text what was found.
	Replaced int
	Named    []Named
	Text     string
	// Decides: the gang ends by SameFailureTwice, unless the check has a pod replaced (arbiter.go).
	Decides bool
	// KeepsSlow: slow pods are not replaced any more, because one found no other node.
	KeepsSlow bool
	// Wish is the request that it answers; 0: none.
	Wish int64
	// Rounds is the number of rounds of trials, Speeds are those that were measured, by model.
	Rounds int
	Speeds []Speeds
}

// Named is a pod that a check had replaced.
type Named struct {
	Slot      Slot
	Pod, Node string
	// Cause is NodeCheckFailed or NodeSlow, of package replacements, Text the evidence.
	Cause, Text string
}

const (
	// slowShare is the share of the pods, one of so many, above which slow pods are none of single nodes.
	slowShare = 4
	// maxCheckText bounds Check.Text, and maxNamedText that of a named pod, in bytes. maxNamed bounds Check.Named.
	maxCheckText, maxNamedText, maxNamed = 700, 200, 16
)

// checking is what a coordinator keeps of the node check that it leads. Which trials are wanted follows from the answers in reports, so
// that another coordinator continues the check.
type checking struct {
	// trials are those that are wanted now, by slot, and round is their round.
	trials map[Slot]asked
	round  check.Round
	// lost are the answers that did not come in time.
	lost map[Slot][]check.Answer
	// news rises with each pod and each answer that is new; judged is what it was at judgedAt, when the verdict was last computed.
	news, judged int64
	judgedAt     time.Time
	// open is the number of wanted trials that are not answered, late when the first of them counts as lost.
	open int
	late time.Time
}

type asked struct {
	trial    protocol.Trial
	pod      string
	since    time.Time
	answered bool
}

// judgeEvery is how often the verdict is computed at most while trials are not answered: a large gang sends thousands of answers.
const judgeEvery = time.Second

// due reports whether the verdict may be another one.
func (c *checking) due(now time.Time) bool {
	switch {
	case c.judgedAt.IsZero(), c.open > 0 && now.After(c.late):
		return true
	case c.news == c.judged:
		return false
	}
	return c.open == 0 || now.Sub(c.judgedAt) >= judgeEvery
}

// noteTrials records that a report has another pod or other answers than the slot's last one.
func (s *State) noteTrials(slot Slot, was *members.Member) {
	f, m := s.run.forming, s.members.At(slot)
	same := func(a, b protocol.TrialAnswer) bool { return a.TrialID == b.TrialID && a.Outcome == b.Outcome }
	if f == nil || was.Is(m.Pod().UID) && slices.EqualFunc(was.Report().Trials, m.Report().Trials, same) {
		return
	}
	c := &f.checking
	c.news++
	a, wanted := c.trials[slot]
	answers := func(t protocol.TrialAnswer) bool { return t.TrialID == a.trial.TrialID }
	if wanted && !a.answered && m.Is(a.pod) && slices.ContainsFunc(m.Report().Trials, answers) {
		a.answered = true
		c.trials[slot] = a
		c.open--
	}
}

// timeout is after how long a trial without an answer is lost.
func (a asked) timeout() time.Duration { return a.trial.Imports + a.trial.Within + trialSlack }

// checkDue reports whether the next generation must not begin before a node check.
func (s *State) checkDue() bool {
	if s.members.WholeCommand() || s.supervision.NodeCheck == CheckNever && !s.wished() {
		return false
	}
	if s.Record.Check.open(s.generation.Number) {
		return true
	}
	if s.generation.Number == 0 {
		return s.supervision.NodeCheck >= CheckUnlessPassed
	}
	c := s.account.Repairing(s.generation.Number)
	return c != nil && (c.Suspect != "" && c.Suspect != cause.SuspectPod || c.Code == cause.FabricHang)
}

// checkOver reports whether the check before the next generation has ended, or the generation needs none.
func (s *State) checkOver() bool {
	c := &s.Record.Check
	return c.Before == s.generation.Number+1 && !c.Ended.IsZero() || !s.checkDue()
}

// advanceCheck orders the next trials of the node check, has the pods that it named replaced, or ends it.
func (s *State) advanceCheck(now time.Time) {
	c := &s.Record.Check
	if s.checkOver() || !s.nodesKnown(now) {
		return
	}
	ordered := c.Before == s.generation.Number+1 && c.Result == CheckOrdered
	if c.Before != s.generation.Number+1 || ordered {
		if !ordered && s.mayBeSkipped() {
			s.skipCheck(now)
			return
		}
		begun := Check{Before: s.generation.Number + 1, Began: now, Result: CheckUnderWay}
		if ordered {
			begun.Decides, begun.Wish = c.Decides, c.Wish
		}
		*c = begun
		s.emit(PersistLater{})
	}
	f := &s.run.forming.checking
	if !f.due(now) {
		return
	}
	f.judged, f.judgedAt = f.news, now
	pods := s.checkedPods(now)
	if len(f.lost) == len(pods) && f.round == check.Alone {
		s.endCheck(pods, &check.Verdict{Systemic: "no agent answered in time"}, now)
		return
	}
	plan := check.Judge(pods, s.run.forming.nodes.known.Usual)
	if !plan.Over() {
		c.Result = CheckUnderWay
		s.ask(pods, plan, now)
		return
	}
	*f = checking{judgedAt: now}
	if named := s.toReplace(&plan.Verdict); len(named) > 0 {
		s.replaceNamed(named, now)
		return
	}
	if s.holdWrong(&plan.Verdict) {
		return
	}
	s.endCheck(pods, &plan.Verdict, now)
}

// tried returns the slot of a pod in the numbering of package check.
func (s *State) tried(pod int) Slot { return s.members.Slots()[pod] }

// toReplace returns the pods to replace: those that must not run, if the check may still replace all of them; then slow ones, if the job
// wants that. If more than a quarter of the pods are slow, the cause is not one node.
func (s *State) toReplace(v *check.Verdict) []check.Finding {
	c, pods := &s.Record.Check, s.members.Parts()
	named, left := v.Replace(), check.MostReplaced(pods)-c.Replaced
	if len(named) > left { // those that must not train at all
		named = slices.DeleteFunc(named, func(f check.Finding) bool { return f.Kind != check.ComputeWrong })
	}
	if len(named) > left || !s.maySpare(named) {
		return nil
	}
	slow := v.Slow()
	if !s.supervision.ReplaceSlow || c.Decides || c.KeepsSlow || len(slow) > max(1, pods/slowShare) {
		return named
	}
	for _, f := range slow {
		if more := append(slices.Clip(named), f); len(named) < left && s.maySpare(more) {
			named = more
		}
	}
	return named
}

// maySpare reports whether the gang loses no state with all of these pods. A gang of one pod is tried against no other.
func (s *State) maySpare(named []check.Finding) bool {
	var slots []Slot
	for _, f := range named {
		slots = append(slots, s.tried(f.Pod))
	}
	return s.members.Parts() > 1 && s.generation.SurvivesWithout(slots...)
}

// replaceNamed gives up the pods that the check named. It continues with those that take their places.
func (s *State) replaceNamed(named []check.Finding, now time.Time) {
	var notes []replacements.Note
	for _, f := range named {
		slot := s.tried(f.Pod)
		pod := s.members.At(slot).Pod()
		why, reason := replacements.NodeCheckFailed, NoticeNodeCheckFailed
		if f.Kind == check.Slow {
			why, reason = replacements.NodeSlow, NoticeNodeSlow
		}
		s.Record.Check.name(Named{slot, pod.Name, pod.Node, why, cause.Cut(f.Evidence, maxNamedText)}, f.Evidence)
		d := Termination{Slot: slot, Pod: pod.UID, Name: pod.Name, Node: pod.Node, Cause: why, Message: f.Evidence}
		d = replacements.Move(d, now)
		s.emit(EmitEvent{Notice{Warning: true, Reason: reason, Message: fmt.Sprintf("slot %d is replaced before generation %d: %s", slot, s.Record.Check.Before, f.Evidence)}})
		notes = append(notes, s.replacements.GiveUp(d, now))
	}
	s.emit(Checked{Named: len(named)})
	s.gaveUp(notes)
}

// endCheck records the result, and reports it.
func (s *State) endCheck(pods []check.Pod, v *check.Verdict, now time.Time) {
	c := &s.Record.Check
	c.Ended, c.Result = now, CheckPassed
	if c.Replaced > 0 {
		c.Result = CheckReplaced
	}
	for _, f := range v.Findings {
		if f.Kind == check.Slow {
			s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeNodeSlow, Message: fmt.Sprintf("slot %d trains nevertheless: %s", s.tried(f.Pod), f.Evidence)}})
		} else {
			c.Result = CheckInconclusive
		}
		c.note(f.Evidence)
	}
	if v.Systemic != "" {
		c.Result = CheckInconclusive
		c.note(v.Systemic)
	}
	for _, path := range v.Paths {
		c.note(path)
	}
	if passes := s.passes(pods, v); len(passes) > 0 {
		s.emit(NotePasses{passes})
	}
	c.Speeds = speedsOf(pods)
	took := c.Ended.Sub(c.Began)
	s.account.NoteChecked(s.generation.Number, took)
	s.emit(Checked{Result: c.Result, Took: took})
	s.emit(EmitEvent{Notice{Warning: c.Result == CheckInconclusive, Reason: NoticeNodeCheck, Message: c.Describe(s.members.Parts())}})
	s.arbitrated(now)
}

// name records a pod that is replaced, with the evidence.
func (c *Check) name(n Named, evidence string) {
	c.note(evidence)
	if c.Replaced++; c.Replaced <= maxNamed {
		c.Named = append(slices.Clone(c.Named), n)
	}
}

// note adds a line to the text.
func (c *Check) note(line string) {
	if c.Text != "" {
		line = c.Text + "\n" + line
	}
	c.Text = cause.Cut(line, maxCheckText)
}

// Describe returns the result of a check of so many pods, for users.
func (c *Check) Describe(pods int) string {
	text := fmt.Sprintf("before generation %d, %d pods in %s: %s", c.Before, pods, c.Ended.Sub(c.Began).Round(time.Second/10), c.Result)
	if c.Replaced > 0 {
		text += fmt.Sprintf(", %d replaced", c.Replaced)
	}
	switch {
	case c.Decides && c.Replaced == 0:
		text += "; the job ends, because the same failure occurred twice"
	case c.Result == CheckInconclusive:
		text += "; training begins"
	}
	if c.Text != "" {
		text += ": " + c.Text
	}
	return text
}

// checkWaits returns which round of the check is under way, for users; "": none is.
func (s *State) checkWaits() string {
	c := &s.run.forming.checking
	if of := &s.Record.Check; of.Result == CheckNoHealthyNode && !s.checkOver() {
		return of.Text
	}
	if s.run.forming.nodes.waits {
		return "node check: waits for the results of earlier checks of the nodes"
	}
	if len(c.trials) == 0 {
		return ""
	}
	if c.round == check.Alone {
		return "node check: tries each pod alone"
	}
	return fmt.Sprintf("node check: tries pods in pairs, round %d", c.round)
}

// checkedPods are the pods with their answers, in the order of their slots.
func (s *State) checkedPods(now time.Time) []check.Pod {
	c := &s.run.forming.checking
	pods := make([]check.Pod, s.members.Parts())
	for i, slot := range s.members.Slots() {
		m := s.members.At(slot)
		p := check.Pod{ID: m.Pod().UID, Name: m.Pod().Name, Node: m.Pod().Node, Devices: m.Pod().Devices}
		p.Accusations = s.run.forming.nodes.known.Nodes[p.Node].Accusations
		for _, a := range m.Report().Trials {
			if a.Check == s.generation.Number+1 {
				if check.Round(a.Round) == check.Alone {
					p.Model, p.Backend = a.Model, a.Backend
				}
				p.Answers = append(p.Answers, answerOf(a))
			}
		}
		if a, waits := c.trials[slot]; waits && a.pod == p.ID && !answered(p, a.trial) && now.Sub(a.since) > a.timeout() {
			lost := check.Answer{Round: check.Round(a.trial.Round), Attempt: a.trial.Attempt, Partner: a.trial.Partner, Outcome: check.Lost}
			if c.lost == nil {
				c.lost = map[Slot][]check.Answer{}
			}
			c.lost[slot] = append(c.lost[slot], lost)
		}
		for _, l := range c.lost[slot] {
			p.Answers = with(p.Answers, l)
		}
		pods[i] = p
	}
	return pods
}

// with adds an answer, unless there is one of a later attempt.
func with(all []check.Answer, l check.Answer) []check.Answer {
	for i, a := range all {
		if a.Round == l.Round && a.Partner == l.Partner {
			if a.Attempt < l.Attempt {
				all[i] = l
			}
			return all
		}
	}
	return append(all, l)
}

func answered(p check.Pod, t protocol.Trial) bool {
	for _, a := range p.Answers {
		if int(a.Round) == t.Round && a.Attempt == t.Attempt && a.Partner == t.Partner {
			return true
		}
	}
	return false
}

var outcomes = map[protocol.TrialOutcome]check.Outcome{
	protocol.TrialPassed: check.Passed, protocol.TrialFailed: check.Failed, protocol.TrialWrong: check.Wrong,
	protocol.TrialAbsent: check.Absent, protocol.TrialLate: check.Late,
}

func answerOf(a protocol.TrialAnswer) check.Answer {
	outcome, known := outcomes[a.Outcome]
	if !known {
		outcome = check.Lost
	}
	return check.Answer{
		Round: check.Round(a.Round), Attempt: a.Attempt, Partner: a.Partner, Outcome: outcome, Text: a.Text, Speed: a.Speed,
	}
}

// ask sets the trials that agents must make now.
func (s *State) ask(pods []check.Pod, plan check.Plan, now time.Time) {
	c := &s.run.forming.checking
	next, slots := map[Slot]asked{}, s.members.Slots()
	if len(c.trials) == 0 || c.round != plan.Round {
		c.round = plan.Round
		s.Record.Check.Rounds++
	}
	for _, t := range plan.Trials {
		a := s.members.At(slots[t.A]).Report()
		id := protocol.TrialID{Check: s.generation.Number + 1, Round: int(t.Round), Attempt: t.Attempt}
		one := protocol.Trial{TrialID: id, WorldSize: a.Ranks, Store: address(a), Imports: importsWithin(t), Within: trialWithin}
		if t.B < 0 {
			next[slots[t.A]] = asked{trial: one, pod: pods[t.A].ID, since: now}
			continue
		}
		one.WorldSize = a.Ranks + s.members.At(slots[t.B]).Report().Ranks
		two := one
		one.Partner, two.Partner, two.BaseRank = pods[t.B].ID, pods[t.A].ID, a.Ranks
		next[slots[t.A]], next[slots[t.B]] = asked{trial: one, pod: pods[t.A].ID, since: now}, asked{trial: two, pod: pods[t.B].ID, since: now}
	}
	changed := len(next) != len(c.trials)
	c.open, c.late = 0, time.Time{}
	for slot, n := range next {
		if before, ok := c.trials[slot]; ok && before.pod == n.pod && before.trial.TrialID == n.trial.TrialID {
			n = before
			next[slot] = n
		} else {
			changed = true
		}
		if late := n.since.Add(n.timeout()); !n.answered {
			if c.open++; c.late.IsZero() || late.Before(c.late) {
				c.late = late
			}
		}
	}
	if c.trials = next; changed {
		s.emit(Broadcast{})
	}
}

// importsWithin is how long the processes of a trial may import.
func importsWithin(t check.Trial) time.Duration {
	switch {
	case t.Longer:
		return longerImports
	case t.B < 0:
		return firstImports
	}
	return laterImports
}

func address(r *protocol.Report) string {
	if strings.Contains(r.Address, ":") {
		return fmt.Sprintf("[%s]:%d", r.Address, r.Port)
	}
	return fmt.Sprintf("%s:%d", r.Address, r.Port)
}

// wantedTrial is the trial that a pod must make; the zero Trial: none.
func (s *State) wantedTrial(slot Slot, pod string) protocol.Trial {
	if f := s.run.forming; f != nil && f.checking.trials[slot].pod == pod {
		return f.checking.trials[slot].trial
	}
	return protocol.Trial{}
}
