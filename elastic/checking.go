package elastic

import (
	"fmt"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// Times of a trial. An agent that has not answered trialSlack after the trial's time has lost it.
const (
	aloneWithin, pairWithin = 30 * time.Second, 40 * time.Second
	trialSlack              = 10 * time.Second
)

// checking is the node check before the next generation. Which trials are wanted follows from the answers in reports, so that another
// coordinator continues the check.
type checking struct {
	// trials are those that are wanted now, by slot.
	trials map[Slot]asked
	// lost are the answers that did not come in time.
	lost map[Slot][]check.Answer
	// named: pods at fault were given up, and the check continues with those that replace them.
	named map[string]bool
	over  bool
}

type asked struct {
	trial protocol.Trial
	pod   string
	since time.Time
}

// checked advances the node check; true: it is over, or the job wants none.
func (s *State) checked(now time.Time) bool {
	c := &s.run.forming.checking
	if !s.supervision.NodeCheck || c.over {
		return true
	}
	pods := s.checkedPods(now)
	plan := check.Judge(pods, nil)
	if !plan.Over() {
		s.ask(pods, plan.Trials, now)
		return false
	}
	c.trials = nil
	s.emit(Broadcast{})
	var notes []replacements.Note
	for _, f := range plan.Verdict.Replace() {
		pod := s.members.At(Slot(f.Pod)).Pod()
		if c.named[pod.UID] {
			continue
		}
		if c.named == nil {
			c.named = map[string]bool{}
		}
		c.named[pod.UID] = true
		d := replacements.Move(Termination{Slot: Slot(f.Pod), Pod: pod.UID, Name: pod.Name, Node: pod.Node, Message: "node check: " + f.Evidence}, now)
		notes = append(notes, s.replacements.GiveUp(d, now))
	}
	if len(notes) > 0 {
		s.gaveUp(notes)
		return false
	}
	c.over = true
	return true
}

// checkedPods are the pods with their answers, in the order of their slots.
func (s *State) checkedPods(now time.Time) []check.Pod {
	c := &s.run.forming.checking
	pods := make([]check.Pod, s.members.Len())
	for i := range pods {
		m := s.members.At(Slot(i))
		p := check.Pod{ID: m.Pod().UID, Name: m.Pod().Name, Node: m.Pod().Node}
		for _, a := range m.Report().Trials {
			if a.Check == s.generation.Number+1 {
				p.Model = a.Model
				p.Answers = append(p.Answers, answerOf(a))
			}
		}
		if a, waits := c.trials[Slot(i)]; waits && a.pod == p.ID && !answered(p, a.trial) && now.Sub(a.since) > a.trial.Within+trialSlack {
			lost := check.Answer{Round: check.Round(a.trial.Round), Attempt: a.trial.Attempt, Partner: a.trial.Partner, Outcome: check.Lost}
			if c.lost == nil {
				c.lost = map[Slot][]check.Answer{}
			}
			c.lost[Slot(i)] = append(c.lost[Slot(i)], lost)
		}
		for _, l := range c.lost[Slot(i)] {
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
	protocol.TrialPassed: check.Passed, protocol.TrialFailed: check.Failed, protocol.TrialWrong: check.Wrong, protocol.TrialAbsent: check.Absent,
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
func (s *State) ask(pods []check.Pod, trials []check.Trial, now time.Time) {
	c := &s.run.forming.checking
	next := map[Slot]asked{}
	for _, t := range trials {
		a := s.members.At(Slot(t.A)).Report()
		id := protocol.TrialID{Check: s.generation.Number + 1, Round: int(t.Round), Attempt: t.Attempt}
		one := protocol.Trial{TrialID: id, WorldSize: a.Ranks, Store: address(a), Within: aloneWithin}
		if t.B < 0 {
			next[Slot(t.A)] = asked{one, pods[t.A].ID, now}
			continue
		}
		one.WorldSize, one.Within = a.Ranks+s.members.At(Slot(t.B)).Report().Ranks, pairWithin
		two := one
		one.Partner, two.Partner, two.BaseRank = pods[t.B].ID, pods[t.A].ID, a.Ranks
		next[Slot(t.A)], next[Slot(t.B)] = asked{one, pods[t.A].ID, now}, asked{two, pods[t.B].ID, now}
	}
	changed := len(next) != len(c.trials)
	for slot, n := range next {
		if before, ok := c.trials[slot]; ok && before.pod == n.pod && before.trial.TrialID == n.trial.TrialID {
			next[slot] = before
		} else {
			changed = true
		}
	}
	if c.trials = next; changed {
		s.emit(Broadcast{})
	}
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
