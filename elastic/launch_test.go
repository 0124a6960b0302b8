package elastic

import (
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestAGivenUpStepOfALaterLauncherIsKept: the retained step of the previous launcher does not count as a step of the present launcher.
func TestAGivenUpStepOfALaterLauncherIsKept(t *testing.T) {
	now := time.Unix(1, 0)
	s := New(1, time.Minute, Record{Generation: 1, Durable: &StoredStep{Mark: protocol.Mark{Step: 10, Generation: 1}}})
	s.becomeLaunch(2)
	s.generation.Begin(now, now)
	s.becomeRunning()
	s.ledger.RecordManifest(protocol.Mark{Step: 5, Generation: 2, Branch: 1}, s.generation.Stored(), now, now)
	s.generation.RestoreStep, s.generation.RestoreBranch = 5, 1
	s.giveUpStep(&cause.Cause{Code: cause.RestoreFailed})
	if l := s.rec().Launch; l.After != 1 || len(l.Kept) != 2 || l.Kept[0].Step != 5 || l.Kept[1].Step != 10 {
		t.Errorf("kept is %+v, want steps 5 and 10", l)
	}
}
