package coordinator

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
)

// TestSizeChanges: a recovery to another number of ranks counts by cause and direction, one to the same number does not.
func TestSizeChanges(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []elastic.Recovery{
		{Cause: cause.Cause{Code: cause.PodReplaced}, Ranks: 4, RanksBefore: 6}, {Cause: cause.Cause{Code: cause.GangGrows}, Ranks: 6, RanksBefore: 4},
		{Cause: cause.Cause{Code: cause.PodReplaced}, Ranks: 6},
	} {
		m.settled(r)
	}
	for _, c := range []struct {
		cause     cause.Code
		direction string
	}{{cause.PodReplaced, "fewer"}, {cause.GangGrows, "more"}} {
		if n := testutil.ToFloat64(m.sizes.WithLabelValues(string(c.cause), c.direction)); n != 1 {
			t.Errorf("%s to %s: %v", c.cause, c.direction, n)
		}
	}
	if n := testutil.CollectAndCount(m.sizes); n != 2 {
		t.Errorf("%d kinds of changes, want 2", n)
	}
}
