package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/elastic"
)

// TestWhatPeopleSeeIsWrittenInTheEnd: figures for users are written even if no later event wakes the writer: after a change while a record
// was being stored, and after a failed write.
func TestWhatPeopleSeeIsWrittenInTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		persist *elastic.Persist
		refuse  int
		writes  int
	}{
		"beside a record": {&elastic.Persist{}, 0, 2},
		"refused once":    {nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := newMetrics(prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			store := newMemory()
			store.refuse = tt.refuse
			g := newGang(&Server{Options: Options{Store: store, Log: logr.Discard()}, metrics: m, ctx: ctx}, Key{Namespace: "team", Name: "train"})
			g.state = elastic.New(1, 0, elastic.Record{})
			g.persist, g.dirty = tt.persist, true
			g.wake <- struct{}{}
			go g.write()
			for range tt.writes {
				select {
				case <-store.writes:
				case <-time.After(2 * time.Minute):
					t.Fatal("the change was never written")
				}
			}
		})
	}
}
