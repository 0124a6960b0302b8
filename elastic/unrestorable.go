package elastic

import (
	"fmt"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// A step that ranks fail to restore: their objects do not take it, as where a parameter group came in mid-training, or there is no memory
// for it. Its bytes are not to blame: each copy was verified against its checksum, so that another copy of it would fail alike.
//
//  1. The first failure costs a generation and no restart: the next one restores the same step, for what lacked may have been momentary. It
//     begins restorePause later: storage that a script reads beside our state may be away for a while, and each step that is given up
//     meanwhile is lost.
//  2. The same failure again, with no other failure and no restored generation between, gives the step up, and all after it: the next
//     generation begins a branch of training from an older step that all ranks can have, and where there is none without a step: from
//     the beginning, or the script's own checkpoint. Another failure to restore is tried once more. So it goes on, step by step, until
//     none is left; what then fails does so without our state, and counts as any failure of the script.
//  3. A rank that is killed from outside as it restores may be so by chance. That spends restarts, and the step is given up where the gang
//     would be for having no progress.
//
// Of the stored steps that are given up so the newest stays in storage (Launch.Kept), for people: what kept ranks from restoring it may
// have been their machines' fault.
//
// Record.BestStep stays: what is trained again is no progress, so that a script which fails at one place is given up there.

// restorePause is how long after a failure to restore a step the next generation restores it again.
const restorePause = time.Minute

// giveUpStep has no later generation restore the step that the newest one restored, or one after it.
func (s *State) giveUpStep(c *cause.Cause) {
	step := s.generation.RestoreStep
	s.ledger.KeepGivenUp(step, s.generation.After)
	s.branchAfter(step - 1)
	const next = "training continues from an older step that is available to all ranks, else from the beginning or the script's own checkpoint"
	message := fmt.Sprintf("ranks fail to restore step %d: %s; it is not restored again: %s", step, cause.LastLine(c.Message), next)
	s.emit(EmitEvent{Notice{Warning: true, Reason: NoticeStepGivenUp, Message: message}})
}
