package controller

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/nodehealth"
)

// counts are the metrics of replacements.
type counts struct {
	replacements *prometheus.CounterVec
	recreated    prometheus.Histogram
	refusals     prometheus.Counter
}

func newCounts() counts {
	return counts{
		replacements: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_replacements_total", Help: "Pods that were taken out of their Job so that another one replaces them, by cause."}, []string{"cause", "dead"}),
		recreated:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_replacement_recreated_seconds", Help: "Time from the release of a pod to the creation of its replacement.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}),
		refusals:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_evictions_refused_total", Help: "Evictions of replaced pods that a disruption budget refused; each is retried."}),
	}
}

func (m counts) register(registry prometheus.Registerer) error {
	if registry == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.replacements, m.recreated, m.refusals} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering the metrics of replacements: %w", err)
		}
	}
	return nil
}

func (m counts) replaced(d elastic.Termination) {
	m.replacements.WithLabelValues(nodehealth.CauseLabel(d.Cause, v1alpha1.ControllerCauses), fmt.Sprint(d.Dead)).Inc()
}
