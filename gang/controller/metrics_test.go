package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A gang's figures are there while its Job is.
func TestGangMetrics(t *testing.T) {
	w := newWorld(t, job(admitted()))
	registry := prometheus.NewRegistry()
	if err := w.c.metrics.register(registry); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.others("run", map[string]any{"run": map[string]any{"generation": 1, "restarts": 0, "startedAt": "2026-01-02T03:04:00.000000Z",
		"progress": map[string]any{"step": 12, "lostMs": 1000}}})
	w.reconcile()
	const want = `
# HELP holdfast_gang_goodput_ratio Share of the time since the first start that was spent on steps that were kept.
# TYPE holdfast_gang_goodput_ratio gauge
holdfast_gang_goodput_ratio{gang="llama",namespace="team"} 0.8
# HELP holdfast_gang_lost_seconds Training time lost to recoveries so far.
# TYPE holdfast_gang_lost_seconds gauge
holdfast_gang_lost_seconds{gang="llama",namespace="team"} 1
# HELP holdfast_gang_step Newest step that all ranks finished, as far as the script tells.
# TYPE holdfast_gang_step gauge
holdfast_gang_step{gang="llama",namespace="team"} 12
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if err := w.client.Delete(t.Context(), job(admitted())); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d figures of a Job that is gone, %v", n, err)
	}
}
