package coordinator

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/lru"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestPinsReachTheRecord: a gang in memory receives the pins of its job and stores them. A gang that is not in memory reads them when it is
// loaded.
func TestPinsReachTheRecord(t *testing.T) {
	h := open(t, leading())
	p := pod("team-a", "train", 0, "a0")
	wish := func(step int64) elastic.Retention {
		return elastic.Retention{Version: step, Pins: []protocol.Mark{{Step: step, Generation: 1}}}
	}
	settings := func(step int64) elastic.Settings {
		return elastic.Settings{Storage: elastic.Storage{Retention: wish(step)}}
	}
	older, durable := elastic.StoredStep{
		Mark: protocol.Mark{Step: 1, Generation: 1},
	}, elastic.StoredStep{
		Mark: protocol.Mark{Step: 2, Generation: 1},
	}
	h.store.mu.Lock()
	h.store.members[p.Key], h.store.retention = 1, wish(1)
	h.store.records[p.Key] = elastic.Record{Generation: 1, Phase: elastic.Running, Durable: &durable, Older: &older}
	h.store.mu.Unlock()
	pinned := func(step int64) {
		t.Helper()
		eventually.Holds(t, "the record has the pin", func() (bool, any) {
			h.store.mu.Lock()
			defer h.store.mu.Unlock()
			got := h.store.records[p.Key].Pinned
			return len(got) == 1 && got[0].Step == step, got
		})
	}
	if err := h.server.SetSettings(t.Context(), p.Key, settings(2)); err != nil {
		t.Fatal(err)
	}
	h.server.mu.Lock()
	known := len(h.server.gangs)
	h.server.mu.Unlock()
	if known != 0 {
		t.Error("a gang without agents was loaded for its pins")
	}
	if err := h.server.SetPendingReplacements(t.Context(), p.Key, nil); err != nil { // which loads it
		t.Fatal(err)
	}
	pinned(1)
	if err := h.server.SetSettings(t.Context(), p.Key, settings(2)); err != nil {
		t.Fatal(err)
	}
	pinned(2)
	h.server.Elected = make(chan struct{})
	if err := h.server.SetSettings(t.Context(), p.Key, settings(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("by one that does not lead: %v", err)
	}
}

// TestSavesOfAGang: the metric counts the saves of each gang by result. An overlapped save counts once. The series of a gang are removed
// with the gang.
func TestSavesOfAGang(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &Server{metrics: m, ctx: ctx, contacts: lru.New(contactMost)}
	train, other := newGang(s, Key{Namespace: "team", Name: "train"}), newGang(s, Key{Namespace: "team", Name: "other"})
	for i, g := range []*gang{train, other} {
		g.state = elastic.New(1, 0, elastic.Record{Generation: 1, Phase: elastic.Running})
		st := &stream{peer: Caller{Pod: elastic.Pod{UID: "uid"}}, next: make(chan message, 1)}
		g.streams[st], g.current[0] = true, st
		for sequence, saves := range []*protocol.Saves{
			{Copied: 7},
			{Copied: 10, Overlapped: 1, Dropped: 2, Refused: uint32(5 * i)},
			{Copied: 11, Overlapped: 2, Dropped: 2, Skipped: 4, Refused: uint32(5 * i)},
		} {
			r := protocol.Report{
				Incarnation: 1,
				Sequence:    uint64(sequence),
				Ranks:       1,
				Generation:  1,
				State:       protocol.StateRunning,
				Rank:        []protocol.Rank{{Saves: saves}},
			}
			if err := g.reported(st, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	counted := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]float64{}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				if f.GetName() == "holdfast_gang_saves_total" {
					l := s.GetLabel() // labels are sorted by name
					counts[l[0].GetValue()+" "+l[2].GetValue()] = s.GetCounter().GetValue()
				}
			}
		}
		return counts
	}
	left := map[string]float64{"other copied": 2, "other overlapped": 2, "other dropped": 2, "other skipped": 4, "other refused": 5}
	want := map[string]float64{"train copied": 2, "train overlapped": 2, "train dropped": 2, "train skipped": 4}
	maps.Copy(want, left)
	if got := counted(); !maps.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
	train.cancel()
	eventually.Holds(t, "the figures of the gang that is gone go", func() (bool, any) { got := counted(); return maps.Equal(got, left), got })
	train.countSaves(protocol.Saves{Copied: 1})
	if got := counted(); !maps.Equal(got, left) {
		t.Errorf("after the gang was forgotten: %v", got)
	}
}

// TestGapsOfAGang: the metric has the gaps of each gang, and its series are removed with the gang.
func TestGapsOfAGang(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	train, other := newGang(
		&Server{metrics: m, ctx: ctx},
		Key{Namespace: "team", Name: "train"},
	), newGang(
		&Server{metrics: m, ctx: ctx},
		Key{Namespace: "team", Name: "other"},
	)
	for _, gap := range []time.Duration{3 * time.Second, 40 * time.Second} {
		train.madeDurable(gap)
	}
	other.madeDurable(time.Second)
	gangs := func() map[string]uint64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]uint64{}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				if f.GetName() == "holdfast_gang_durable_gap_seconds" {
					counts[s.GetLabel()[0].GetValue()] += s.GetHistogram().GetSampleCount()
				}
			}
		}
		return counts
	}
	if got := gangs(); got["train"] != 2 || got["other"] != 1 {
		t.Errorf("counted are %v", got)
	}
	train.cancel()
	eventually.Holds(t, "the figures of the gang that is gone go", func() (bool, any) { got := gangs(); return len(got) == 1 && got["other"] == 1, got })
	train.madeDurable(time.Second) // its record is still on the way to the store
	if got := gangs(); len(got) != 1 {
		t.Errorf("after the gang was forgotten: %v", got)
	}
}
