package coordinator

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// metrics are about all gangs together.
type metrics struct {
	agents      prometheus.Gauge
	generations prometheus.Counter
	recoveries  *prometheus.CounterVec
	sizes       *prometheus.CounterVec
	verdicts    *prometheus.CounterVec
	phases      *prometheus.HistogramVec
	recomputed  *prometheus.CounterVec
	storing     prometheus.Histogram
	gaps        *prometheus.HistogramVec
	saves       *prometheus.CounterVec
	standstills *prometheus.CounterVec
	checks      *prometheus.CounterVec
	named       prometheus.Counter
	checking    prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	phases := prometheus.ExponentialBuckets(0.001, 2, 17) // 1 ms to 65 s
	m := &metrics{
		agents:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_agents_attached", Help: "Agents with an open stream to this replica."}),
		generations: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_generations_total", Help: "Generations that were stored and handed out."}),
		recoveries:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_recoveries_total", Help: "Repaired failures by their first cause."}, []string{"cause"}),
		sizes:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gang_size_changes_total", Help: "Recoveries that led to another number of ranks, by their first cause and direction."}, []string{"cause", "direction"}),
		verdicts:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_verdicts_total", Help: "Gangs that ended, by reason."}, []string{"reason"}),
		phases:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_recovery_phase_seconds", Help: "How long each phase of a recovery took.", Buckets: phases}, []string{"phase"}),
		recomputed:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_steps_recomputed_total", Help: "Finished steps that were recomputed after recoveries, by the recovery's first cause."}, []string{"cause"}),
		storing:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_generation_store_seconds", Help: "Time to store a generation or verdict before agents receive it.", Buckets: phases}),
		gaps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_gang_durable_gap_seconds", Help: "Time from a step that all ranks hold sealed to the stored record that lists it as durable.",
			Buckets: prometheus.ExponentialBuckets(0.25, 2, 14)}, []string{"namespace", "gang"}), // 0.25 s to 34 min
		saves:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gang_saves_total", Help: "Saves of ranks, by result."}, []string{"namespace", "gang", "result"}),
		standstills: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_standstills_total", Help: "New verdicts on gangs that made no step."}, []string{"verdict"}),
		checks:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_node_checks_total", Help: "Node checks that ended, by result."}, []string{"result"}),
		named:       prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_node_check_named_pods_total", Help: "Pods that node checks named and had replaced."}),
		checking: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_node_check_seconds", Help: "How long node checks took, with the replacement of pods.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11)}), // 1 s to 17 min
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.agents,
		m.generations,
		m.recoveries,
		m.sizes,
		m.verdicts,
		m.phases,
		m.recomputed,
		m.storing,
		m.gaps,
		m.saves,
		m.standstills,
		m.checks,
		m.named,
		m.checking,
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering the coordinator's metrics: %w", err)
		}
	}
	return m, nil
}

// stored counts a record that the core waited for.
func (m *metrics) stored(r elastic.Record, fresh bool, took time.Duration) {
	m.storing.Observe(took.Seconds())
	if r.Verdict != nil {
		m.verdicts.WithLabelValues(string(r.Verdict.Reason)).Inc()
		return
	}
	if fresh {
		m.generations.Inc()
	}
}

func (m *metrics) settled(r elastic.Recovery) {
	m.recoveries.WithLabelValues(string(r.Cause.Code)).Inc()
	switch {
	case r.RanksBefore > r.Ranks:
		m.sizes.WithLabelValues(string(r.Cause.Code), "fewer").Inc()
	case r.RanksBefore > 0:
		m.sizes.WithLabelValues(string(r.Cause.Code), "more").Inc()
	}
	m.recomputed.WithLabelValues(string(r.Cause.Code)).Add(float64(max(0, r.StepsRecomputed)))
	for _, p := range r.Phases() {
		m.phases.WithLabelValues(strings.ReplaceAll(p.Name, " ", "_")).Observe(p.Took.Seconds())
	}
}

// checked counts a node check that ended, or pods that it named.
func (m *metrics) checked(c elastic.Checked) {
	m.named.Add(float64(c.Named))
	if c.Result != "" {
		m.checks.WithLabelValues(string(c.Result)).Inc()
	}
	if c.Took > 0 {
		m.checking.Observe(c.Took.Seconds())
	}
}

// durable records a step that became durable.
func (m *metrics) durable(key Key, gap time.Duration) {
	m.gaps.WithLabelValues(key.Namespace, key.Name).Observe(gap.Seconds())
}

// saved records saves. Overlapped ones are also copied ones.
func (m *metrics) saved(key Key, s protocol.Saves) {
	inside := s.Copied - min(s.Copied, s.Overlapped)
	for result, n := range map[string]uint32{"copied": inside, "overlapped": s.Overlapped, "dropped": s.Dropped, "skipped": s.Skipped, "refused": s.Refused} {
		if n > 0 {
			m.saves.WithLabelValues(key.Namespace, key.Name, result).Add(float64(n))
		}
	}
}

// forget drops the metrics of a gang that is no longer in memory.
func (m *metrics) forget(key Key) {
	m.gaps.DeleteLabelValues(key.Namespace, key.Name)
	m.saves.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "gang": key.Name})
}
