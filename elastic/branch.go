package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/generation"
	"holdfast.dev/holdfast/internal/protocol"
)

// A rollback requested by a user begins a new branch of training: all steps after a step are given up, whichever pods hold them
// (docs/designs/checkpoint.md, "Branches").
//
//	GoBack ──► the line has the new branch, what it gives up is out of the record ── stored ──► halt ──► the next generation is of it
//
// The same happens for a step that ranks fail to restore (unrestorable.go), once all are halted.
//
// Until the line is stored, the gang continues the previous branch, and its levels do not change, so that the restore point stays in
// memory.

// goBackTo begins the next branch after a step, or emits why it cannot.
func (s *State) goBackTo(to protocol.Point) {
	if why := s.cannotGoBack(to); why != "" {
		s.emit(GoBackRefused{why})
		return
	}
	s.account.Unlearn(to.Step)
	s.branchAfter(to.Step)
	s.ledger.Unshelve(to)
	s.saveAndTell() // no generation begins before it is stored
}

// branchAfter begins the next branch after a step.
func (s *State) branchAfter(step int64) {
	s.ledger.BeginBranch(s.generation.NewestBranch()+1, step)
	s.account.GiveUpAfter(step)
	s.drain.Drop()
	if f := s.run.forming; f != nil {
		f.fetching = noPoint
	}
}

// cannotGoBack returns why the gang cannot go back to a step; "": it can.
func (s *State) cannotGoBack(to protocol.Point) string {
	switch ended := s.ledger.Line().Ended(to); {
	case s.Final():
		return fmt.Sprintf("the job has ended: %s", s.Record.Verdict.Reason)
	case s.over:
		return "the Job is over"
	case !s.ledger.LineStored():
		return fmt.Sprintf("branch %d of training is being stored: try again in a moment", s.generation.NewestBranch())
	case to.Step < 0 || to.Branch < 0 || to.Branch > s.generation.NewestBranch():
		return fmt.Sprintf("step %d of branch %d was never trained: the newest branch is %d", to.Step, to.Branch, s.generation.NewestBranch())
	case ended.Branch > 0:
		return fmt.Sprintf("step %d of branch %d was given up when branch %d began after step %d; name a step of the present line", to.Step, to.Branch, ended.Branch, ended.From)
	case s.generation.Number == 0:
		return "nothing was trained yet"
	case s.generation.NewestBranch() >= protocol.MaxBranch:
		return fmt.Sprintf("an agent reports branch %d, the highest number possible: create the job again", s.generation.NewestBranch())
	case s.generation.RestoreStep == StepUnknown:
		return "the record was lost, so the present line of training is unknown; wait until the next generation runs"
	}
	if !s.generation.CanHave(to) {
		return fmt.Sprintf("step %d of branch %d is not available to every rank: it is neither the newest that all hold in memory nor recorded as complete in storage", to.Step, to.Branch)
	}
	return ""
}

// haltForBranch ends a generation of a branch that was given up, once that is stored.
func (s *State) haltForBranch(now time.Time) {
	if s.ledger.LineStored() {
		failed, _ := s.generation.Failure()
		s.becomeHalting(generation.Suspect{Cause: s.generation.WentBack(), Ordered: !failed}, now)
	}
}
