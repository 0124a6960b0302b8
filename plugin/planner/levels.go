package planner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/topology"
)

// fragmentation returns how fragmented each level is. The tree must have no assumed usage.
func fragmentation(t *topology.Tree) []v1alpha1.FabricLevel {
	var all []v1alpha1.FabricLevel
	for level, l := range t.Levels() {
		f := v1alpha1.FabricLevel{Level: l.Name}
		for _, d := range t.Domains(level) {
			here := int32(0)
			for i := range t.Within(d) {
				if !t.Used(i) {
					here++
				}
			}
			f.Domains++
			f.Free += here
			if t.Whole(d) {
				f.Whole++
			} else {
				f.Broken += here
			}
			f.Largest = max(f.Largest, here)
		}
		all = append(all, f)
	}
	return all
}

// Fragmentation returns how fragmented each level is now.
func (p *Planner) Fragmentation() []v1alpha1.FabricLevel { return fragmentation(p.tree) }

// Metrics are one set for all profiles of a process. They are computed from the tree when something is planned, last at measuredAt.
type Metrics struct {
	broken     *prometheus.GaugeVec
	largest    *prometheus.GaugeVec
	measuredAt time.Time // belongs to the scheduling goroutine
}

// NewMetrics returns unregistered Metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		broken:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_fabric_fragmentation_ratio", Help: "Share of unused nodes in domains whose other nodes are used, by level."}, []string{"level"}),
		largest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_fabric_largest_free_nodes", Help: "Highest number of unused nodes in one domain, by level."}, []string{"level"}),
	}
}

// Collectors returns the metrics, to be registered once.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.broken, m.largest}
}

// measureEvery is the shortest interval between two traversals of the whole tree.
const measureEvery = 5 * time.Second

// measure updates the metrics. The tree must have no assumed usage.
func (m *Metrics) measure(t *topology.Tree, now time.Time) {
	if now.Sub(m.measuredAt) < measureEvery {
		return
	}
	m.measuredAt = now
	m.broken.Reset()
	m.largest.Reset()
	for _, l := range fragmentation(t) {
		m.broken.WithLabelValues(l.Level).Set(float64(l.Broken) / float64(max(l.Free, 1)))
		m.largest.WithLabelValues(l.Level).Set(float64(l.Largest))
	}
}
