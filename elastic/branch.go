package elastic

import (
	"fmt"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

// Going back on purpose begins a new branch of training: all that came after a step is given up, whoever still holds it
// (docs/designs/checkpoint.md, "Branches").
//
//	GoBack ──► the line has the new branch, what it gives up is out of the record ── stored ──► halt ──► the next generation is of it
//
// So does a step that ranks fail to restore (unrestorable.go), once all are halted.
//
// Until that is stored nothing is done that the branch before would not do, and levels rest, so that what it goes back to stays in memory.

// branching says whether the line has a branch that no generation is of yet.
func (s *State) branching() bool { return s.ledger.Line().Newest() > s.Record.Branch }

// branchStored says whether the store has the line as it is.
func (s *State) branchStored() bool { return s.ledger.LineStored() }

// newestBranch is that which the next generation is of.
func (s *State) newestBranch() int64 { return max(s.Record.Branch, s.ledger.Line().Newest()) }

// goBackTo begins the next branch after a step, or says why not.
func (s *State) goBackTo(to protocol.Point) {
	if why := s.cannotGoBack(to); why != "" {
		s.emit(GoBackRefused{why})
		return
	}
	s.account.Unlearn(to.Step)
	s.branchAfter(to.Step)
	s.ledger.Unshelve(to)
	s.saveAndTell() // before that no generation begins
}

// branchAfter begins the next branch after a step.
func (s *State) branchAfter(step int64) {
	s.ledger.BeginBranch(s.newestBranch()+1, step)
	s.account.GiveUpAfter(step)
	s.run.drain, s.run.postHaltCopy = nil, protocol.Mark{}
	if f := s.run.forming; f != nil {
		f.fetching = noPoint
	}
}

// cannotGoBack is why the gang cannot go back to a step; "" where it can.
func (s *State) cannotGoBack(to protocol.Point) string {
	r := &s.Record
	switch ended := s.ledger.Line().Ended(to); {
	case s.Final():
		return fmt.Sprintf("the job has ended: %s", r.Verdict.Reason)
	case s.over:
		return "the Job is over"
	case !s.branchStored():
		return fmt.Sprintf("branch %d of training is about to begin and not stored yet: ask again in a moment", s.newestBranch())
	case to.Step < 0 || to.Branch < 0 || to.Branch > s.newestBranch():
		return fmt.Sprintf("step %d of branch %d was never trained: the newest branch is %d", to.Step, to.Branch, s.newestBranch())
	case ended.Branch > 0:
		return fmt.Sprintf("step %d of branch %d was given up when branch %d began after step %d; name a step of what goes on", to.Step, to.Branch, ended.Branch, ended.From)
	case r.Generation == 0:
		return "nothing was trained yet"
	case s.newestBranch() >= protocol.MaxBranch:
		return fmt.Sprintf("an agent told of branch %d, and there is none after that: create the job again", s.newestBranch())
	case r.RestoreStep == StepUnknown:
		return "the record was lost, and it is not known what went on from where; wait until the next generation runs"
	}
	if !s.canHave(to) {
		return fmt.Sprintf("not every rank has step %d of branch %d: it is neither the newest that all hold in memory nor recorded as whole in storage", to.Step, to.Branch)
	}
	return ""
}

// canHave says whether all ranks can have a step, and will until everything is halted: of what ranks that run hold in memory the gang's
// common step alone is sure to stay.
func (s *State) canHave(to protocol.Point) bool {
	if to.Step == 0 {
		return true
	}
	pods := s.members.Pods(members.NoneLost)
	for i := range s.members.Len() {
		if m := s.members.At(Slot(i)); !members.Ran(m.Report().State) {
			continue
		}
		for local, held := range pods[i].Held {
			pods[i].Held[local] = slices.DeleteFunc(slices.Clone(held), func(p protocol.Point) bool { return p.Step != s.run.commonStep })
		}
	}
	return s.ledger.Reaches(to, pods, s.generation())
}

// wentBack is the cause of a generation's end that is of no branch which goes on.
func (s *State) wentBack() *cause.Cause {
	l := s.ledger.Line()
	return &cause.Cause{Code: cause.WentBack, Rank: -1, Slot: -1, Message: fmt.Sprintf("branch %d of training begins after step %d", l.Newest(), l[len(l)-1].From)}
}

// markOf names a step that the newest generation holds, where it copies it to.
func (s *State) markOf(step int64) protocol.Mark {
	branch, held := s.members.BranchOf(step, s.Record.Generation)
	switch {
	case held:
	case step > s.Record.RestoreStep:
		branch = s.Record.Branch
	default:
		branch = s.Record.RestoreBranch
	}
	return protocol.Mark{Step: step, Generation: s.Record.Generation, Branch: branch}
}

// enterBranch has the next generation be of the newest branch. One that goes back behind where that began, because nothing newer is left,
// gives up what is between.
func (s *State) enterBranch(from protocol.Point) {
	r := &s.Record
	if r.Branch = s.newestBranch(); from.Branch < r.Branch {
		s.ledger.Extend(r.Branch, from.Step)
	}
}

// haltForBranch ends a generation of a branch that goes on no more, once nothing can bring that one back.
func (s *State) haltForBranch(now time.Time) {
	if s.branchStored() {
		failed, _ := s.failure()
		s.becomeHalting(s.wentBack(), !failed, now)
	}
}
