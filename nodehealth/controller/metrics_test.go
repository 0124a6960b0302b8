package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/nodehealth/budget"
)

// TestCausesHaveABound: an annotation may have any content, which must not become the label of a time series.
func TestCausesHaveABound(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, cause := range []string{"GPULost", "x-1", "x-2", "x-3"} {
		m.decided(budget.Decision{Outage: budget.Outage{Outcome: budget.Evict, Cause: cause}})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "holdfast_node_decisions_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "cause" {
					got[l.GetValue()] = series.GetCounter().GetValue()
				}
			}
		}
	}
	if len(got) != 2 || got["GPULost"] != 1 || got["Other"] != 3 {
		t.Errorf("causes: %v", got)
	}
}
