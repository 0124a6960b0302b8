package elastic

import (
	"fmt"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
)

// TestTheRecordStaysSmall: however many pods are replaced however often, what is over is told of in part only, and what
// is not over is kept.
func TestTheRecordStaysSmall(t *testing.T) {
	now := time.Unix(1000, 0)
	s := New(2, 0, Record{Generation: 1, Phase: Forming})
	for round := range 30 {
		s.Record.Generation++
		s.becomeHalting(nil, now)
		s.open(cause.Cause{Code: cause.PodReplaced, Message: "a node died"})
		rec := s.lastRecovery()
		for i := range 1000 {
			o := Replacement{Doom: Doom{Pod: fmt.Sprintf("%d-%d", round, i)}, ReleasedAt: now, AttachedAt: now}
			if i == 999 {
				o.AttachedAt = time.Time{} // nobody has come in its place yet
			}
			rec.Replaced = append(rec.Replaced, o)
		}
	}
	told := 0
	for i, rec := range s.Record.Recoveries {
		told += len(rec.Replaced)
		if i < len(s.Record.Recoveries)-1 && rec.Replaced[len(rec.Replaced)-1].Pod != fmt.Sprintf("%d-999", 10+i) {
			t.Errorf("recovery %d does not tell of the pod that is still awaited: %+v", i, rec.Replaced[len(rec.Replaced)-1])
		}
	}
	if len(s.Record.Recoveries) != keptRecoveries || told != 1000+(keptRecoveries-1)*(keptReplaced+1) {
		t.Errorf("%d recoveries tell of %d pods", len(s.Record.Recoveries), told)
	}
}
