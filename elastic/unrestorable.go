package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// A step that ranks fail to restore: their objects refuse it, for example because a parameter group was added during training, or there is
// not enough memory for it. Its bytes are not the cause: each copy was verified against its checksum, so another copy of it would fail
// alike. Where bytes that another rank gave have the wrong checksum, the network or a device between them is suspected (suspect.go), and
// the step is never given up for that.
//
// 1. The first failure costs a generation and no restart: the next generation restores the same step, because the cause may have been
//    temporary. It starts restorePause later: other storage that the script reads may be unavailable for a while, and each step that is
//    given up meanwhile is lost.
// 2. The same failure again, with no other failure and no restored generation in between, gives up the step and all later ones. The next
//    generation begins a branch of training from an older step that is available to all ranks, or without a step: from the beginning or
//    the script's own checkpoint. A different failure to restore gets one more try. This repeats, step by step, until none is left; a
//    failure after that counts as any failure of the script.
//    That holds for a generation with all pods. Where slots took no part, all pods may be able to restore the step: their number is struck
//    instead (struck.go), and each other number gets two tries of its own.
// 3. A rank that is killed from outside while it restores may be killed by chance. That spends restarts, and the step is given up, or
//    the number of pods struck, when the gang would be given up for lack of progress.
//
// Of the stored steps that are given up this way the newest stays in storage (Launch.Kept), for users: the ranks' machines may have caused
// the failure to restore it.
//
// Record.BestStep does not change: repeated training is no progress, so that a script that always fails at one place is given up there.

// restorePause is how long after a failure to restore a step the next generation restores it again.
const restorePause = time.Minute

// giveUpStep prevents later generations from restoring the step that the newest one restored, or a later one.
func (s *State) giveUpStep(c *cause.Cause) {
	step := s.generation.RestoreStep
	s.ledger.KeepGivenUp(step, s.generation.After)
	s.branchAfter(step - 1)
	const next = "training continues from an older step that is available to all ranks, else from the beginning or the script's own checkpoint"
	message := fmt.Sprintf("ranks fail to restore step %d: %s; it is not restored again: %s", step, cause.LastLine(c.Message), next)
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeStepGivenUp, Message: message}})
}
