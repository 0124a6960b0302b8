package plugin

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/preemption"
)

// measures are the plugin's metrics, one set for all profiles of a process.
type measures struct {
	plans      *prometheus.HistogramVec
	refusals   *prometheus.CounterVec
	waited     prometheus.Histogram
	placed     prometheus.Histogram
	givenUp    prometheus.Counter
	rolledBack prometheus.Counter
	rejected   prometheus.Counter
	excluded   prometheus.Gauge
	planner    *planner.Metrics
	preemption *preemption.Metrics
}

// Values of the label answer.
const (
	answerPlaced  = "placed"
	answerRefused = "refused"
)

func newMeasures() *measures {
	short := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	long := []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
	return &measures{
		planner:    planner.NewMetrics(),
		preemption: preemption.NewMetrics(short),
		plans:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_gang_plan_seconds", Help: "Time to plan a whole gang, by result.", Buckets: short}, []string{"answer"}),
		refusals:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gang_refusals_total", Help: "Plans that found no placement, by reason and by what excludes most nodes."}, []string{"reason", "cause"}),
		waited:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_gang_queue_seconds", Help: "Time from the existence of all members of a gang to the plan that places those without a node.", Buckets: long}),
		placed:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_gang_placement_seconds", Help: "Time from the existence of all members of a gang to the binding of the last.", Buckets: long}),
		givenUp:    prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_gang_plans_given_up_total", Help: "Plans that could not be completed and were replaced by new ones."}),
		rejected:   prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_gang_members_rejected_total", Help: "Members that their node rejected: not admitted, not bound, or not started."}),
		excluded:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_scheduler_nodes_excluded", Help: "Nodes that are excluded for now because they repeatedly reject members."}),
		rolledBack: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_gang_members_rolled_back_total", Help: "Members that had a node and were rolled back, because the rest of their gang got none."}),
	}
}

func (m *measures) all() []prometheus.Collector {
	return append(
		append(m.planner.Collectors(), m.preemption.Collectors()...),
		m.plans,
		m.refusals,
		m.waited,
		m.placed,
		m.givenUp,
		m.rolledBack,
		m.rejected,
		m.excluded,
	)
}

// planned records one answer.
func (m *measures) planned(took time.Duration, refusal *gang.Refusal) {
	if refusal == nil {
		m.plans.WithLabelValues(answerPlaced).Observe(took.Seconds())
		return
	}
	m.plans.WithLabelValues(answerRefused).Observe(took.Seconds())
	m.refusals.WithLabelValues(refusal.Reason, mostly(refusal.Excluded)).Inc()
}

// mostly returns the cause that excludes most nodes; "none" if every node takes some member. Causes have the names of a Gang's status,
// except user-defined ones such as the keys of taints.
func mostly(excluded map[gang.Cause][]string) string {
	count := map[string]int{}
	for cause, nodes := range excluded {
		if cause.Kind == gang.Tainted {
			cause.Name = ""
		}
		count[cause.String()] += len(nodes)
	}
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	if len(names) == 0 {
		return "none"
	}
	return names[0]
}
