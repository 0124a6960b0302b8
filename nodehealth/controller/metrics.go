package controller

import (
	"cmp"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// metrics are about all nodes together.
type metrics struct {
	nodes              *prometheus.GaugeVec
	holds              *prometheus.GaugeVec
	decisions          *prometheus.CounterVec
	writes             *prometheus.CounterVec
	out                prometheus.Gauge
	max                prometheus.Gauge
	partitionSuspected prometheus.Gauge
	broken             prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		nodes:              prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_nodes", Help: "Nodes by the present decision on them."}, []string{"decision"}),
		holds:              prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_nodes_held", Help: "Nodes on hold, by what they wait for."}, []string{"reason"}),
		decisions:          prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_node_decisions_total", Help: "Decisions about nodes, by decision and cause."}, []string{"decision", "cause"}),
		writes:             prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_node_writes_total", Help: "Writes of decisions on Nodes, by result."}, []string{"result"}),
		out:                gauge("holdfast_nodes_out", "Nodes that were given up with pods of gangs on them and are not healthy yet, which the cluster's outage budget counts."),
		max:                gauge("holdfast_nodes_out_max", "Nodes that the cluster's outage budget allows to be out."),
		partitionSuspected: gauge("holdfast_nodes_partition_suspected", "1 while nearly no node renews its lease, so that silent nodes are not evicted."),
		broken:             gauge("holdfast_nodes_breaker", "1 while so many nodes are sick at once that no new decision is made."),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.nodes, m.holds, m.decisions, m.writes, m.out, m.max, m.partitionSuspected, m.broken} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of nodes: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) show(p budget.Plan) {
	decisions := map[budget.Outcome]int{budget.None: 0, budget.Exclude: 0, budget.Hold: 0, budget.Evict: 0}
	holds := map[budget.Reason]int{budget.ClusterBudget: 0, budget.DomainBudget: 0, budget.Breaker: 0}
	for _, d := range p.Decisions {
		decisions[d.Outcome]++
		if d.Outcome == budget.Hold {
			holds[d.Reason]++
		}
	}
	for outcome, n := range decisions {
		m.nodes.WithLabelValues(label(outcome)).Set(float64(n))
	}
	for reason, n := range holds {
		m.holds.WithLabelValues(string(reason)).Set(float64(n))
	}
	m.out.Set(float64(p.Cluster.Out))
	m.max.Set(float64(p.Cluster.Max))
	m.partitionSuspected.Set(map[bool]float64{true: 1}[p.PartitionSuspected])
	m.broken.Set(map[bool]float64{true: 1}[p.Broken])
}

func (m *metrics) decided(d budget.Decision) {
	m.decisions.WithLabelValues(label(d.Outcome), nodehealth.CauseLabel(d.Cause, v1alpha1.ControllerCauses)).Inc()
}

func (m *metrics) wrote(err error) {
	m.writes.WithLabelValues(map[bool]string{true: "done", false: "failed"}[err == nil]).Inc()
}

func label(o budget.Outcome) string { return cmp.Or(string(o), "None") }
