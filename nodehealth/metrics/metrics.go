// Package metrics exports the state of one node daemon to Prometheus: its verdict, the number of signals that it
// received, and when NVML and the API server last answered. A scrape queries neither of them.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast.dev/holdfast/internal/buildinfo"
	"holdfast.dev/holdfast/nodehealth"
)

// Metrics are the metrics of one daemon. Their methods may be called concurrently.
type Metrics struct {
	registry *prometheus.Registry
	verdict  *prometheus.GaugeVec
	signals  *prometheus.CounterVec
	contact  *prometheus.GaugeVec
	gpus     prometheus.Gauge
	expected prometheus.Gauge
	rounds   prometheus.Histogram
	lines    prometheus.Counter
}

// New returns the metrics of a daemon of a version that has seen nothing yet.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		verdict:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_node_verdict", Help: "1 for the present verdict."}, []string{"action", "cause"}),
		signals:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_node_signals_total", Help: "Signals that the daemon received, by source."}, []string{"source", "kind"}),
		contact:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_node_contact_timestamp_seconds", Help: "When NVML or the API server last answered, in seconds since 1970."}, []string{"with"}),
		gpus:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_node_gpus", Help: "GPUs that NVML lists."}),
		expected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_node_gpus_expected", Help: "GPUs that the node should have: the most that its label or NVML gave, or what users set; 0: unknown."}),
		rounds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_node_nvml_round_seconds", Help: "How long NVML took to answer for all GPUs.", Buckets: prometheus.ExponentialBuckets(0.0005, 3, 10)}),
		lines:    prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_node_kernel_lines_total", Help: "Records of the kernel log that were read, including earlier ones of this boot."}),
	}
	m.registry.MustRegister(
		m.verdict,
		m.signals,
		m.contact,
		m.gpus,
		m.expected,
		m.rounds,
		m.lines,
		buildinfo.Collector("holdfast-node", version),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Verdict sets the present verdict.
func (m *Metrics) Verdict(v nodehealth.Verdict) {
	m.verdict.Reset()
	m.verdict.WithLabelValues(v.Action.String(), string(v.Cause)).Set(1)
	m.expected.Set(float64(v.Seen.GPUs))
}

// Signal counts a signal. Rounds of readings are counted by Round alone.
func (m *Metrics) Signal(s nodehealth.Signal) {
	switch s.Kind {
	case nodehealth.Tick, nodehealth.Expected:
	case nodehealth.Read:
		m.gpus.Set(float64(len(s.Readings)))
		m.setContact("nvml", s.At)
	default:
		m.signals.WithLabelValues(string(s.Source), string(s.Kind)).Inc()
	}
}

// Round records how long NVML took to answer once for all GPUs.
func (m *Metrics) Round(took time.Duration) { m.rounds.Observe(took.Seconds()) }

// Line counts a record of the kernel log.
func (m *Metrics) Line() { m.lines.Inc() }

// Answered records that the API server answered just now.
func (m *Metrics) Answered() { m.setContact("api", time.Now()) }

func (m *Metrics) setContact(with string, at time.Time) {
	m.contact.WithLabelValues(with).Set(float64(at.UnixMilli()) / 1000)
}

// Serve serves the metrics at address until ctx ends. It only logs an error: a daemon without metrics still watches its node.
func (m *Metrics) Serve(ctx context.Context, address string, log *slog.Logger) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		log.Error("there are no metrics", "error", err)
		return
	}
	m.serve(ctx, listener, log)
}

func (m *Metrics) serve(ctx context.Context, listener net.Listener, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error("metrics are no longer served", "error", fmt.Errorf("serving at %s: %w", listener.Addr(), err))
	}
}
