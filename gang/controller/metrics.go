package controller

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
)

// metrics are the figures of each gang's status as numbers. They exist as long as the gang's Job.
type metrics struct {
	gangs               *prometheus.GaugeVec
	goodput, lost, step *prometheus.GaugeVec
	capacity            *prometheus.GaugeVec
	phase               *prometheus.GaugeVec
	// wouldHave counts the findings on observed jobs for which an event was written.
	wouldHave *prometheus.CounterVec

	mu     sync.Mutex
	counts map[string]map[string]bool         // guarded by mu: the gangs of each namespace
	phases map[types.NamespacedName][2]string // guarded by mu: the phase and the reason of each gang that phase shows
}

func newMetrics() *metrics {
	return &metrics{
		counts:    map[string]map[string]bool{},
		phases:    map[types.NamespacedName][2]string{},
		phase:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gang_phase", Help: "1 for the present phase of a gang, with its reason."}, []string{"namespace", "gang", "phase", "reason"}),
		gangs:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gangs", Help: "Gangs of a namespace, those that are over included."}, []string{"namespace"}),
		goodput:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gang_goodput_ratio", Help: "Share of the time since the first start that was spent on steps that were kept; absent where unknown."}, []string{"namespace", "gang"}),
		capacity:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gang_capacity_ratio", Help: "Share of its pods with which a gang with a minimum trained, on average since the first start."}, []string{"namespace", "gang"}),
		lost:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gang_lost_seconds", Help: "Training time lost to recoveries so far."}, []string{"namespace", "gang"}),
		step:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_gang_step", Help: "Newest step that all ranks finished; absent where unknown."}, []string{"namespace", "gang"}),
		wouldHave: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_would_have_total", Help: "Events about what would have been done after a failure of an observed job, by reason."}, []string{"reason"}),
	}
}

func (m *metrics) register(registry prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.gangs, m.phase, m.goodput, m.capacity, m.lost, m.step, m.wouldHave} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering the metrics of gangs: %w", err)
		}
	}
	return nil
}

// show sets the figures of a gang.
func (m *metrics) show(g *v1alpha1.Gang, now time.Time) {
	m.showPhase(types.NamespacedName{Namespace: g.Namespace, Name: g.Name}, phaseOf(g))
	r := g.Status.Run
	if r == nil || r.StartedAt == nil {
		return
	}
	m.lost.WithLabelValues(g.Namespace, g.Name).Set(float64(r.Progress.LostMs) / 1000)
	figures := v1alpha1.GangStatus{}
	status.Figures(&figures, &g.Spec, r, now)
	setKnown(m.step, g, float64(figures.Step), figures.Step > 0)
	ratio, ok := status.Goodput(r, now)
	setKnown(m.goodput, g, ratio, ok)
	ratio, ok = status.Capacity(&g.Spec, r, now)
	setKnown(m.capacity, g, ratio, ok)
}

// phaseOf is a gang's phase, and why it is in it: for one that waits why it is not placed, else why it runs or not.
func phaseOf(g *v1alpha1.Gang) [2]string {
	condition := v1alpha1.ConditionRunning
	if g.Status.Phase == v1alpha1.PhaseWaiting {
		condition = v1alpha1.ConditionPlaced
	}
	reason := ""
	if c := meta.FindStatusCondition(g.Status.Conditions, condition); c != nil {
		reason = c.Reason
	}
	return [2]string{string(g.Status.Phase), reason}
}

// showPhase replaces the phase of a gang; a gang without a phase has none.
func (m *metrics) showPhase(gang types.NamespacedName, now [2]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.phases[gang]
	if known && before != now {
		m.phase.DeleteLabelValues(gang.Namespace, gang.Name, before[0], before[1])
		delete(m.phases, gang)
	}
	if now[0] != "" {
		m.phases[gang] = now
		m.phase.WithLabelValues(gang.Namespace, gang.Name, now[0], now[1]).Set(1)
	}
}

// setKnown sets a figure of a gang, or removes it if it is unknown.
func setKnown(v *prometheus.GaugeVec, g *v1alpha1.Gang, value float64, known bool) {
	if !known {
		v.DeleteLabelValues(g.Namespace, g.Name)
		return
	}
	v.WithLabelValues(g.Namespace, g.Name).Set(value)
}

// exists counts a gang.
func (m *metrics) exists(gang types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts[gang.Namespace] == nil {
		m.counts[gang.Namespace] = map[string]bool{}
	}
	m.counts[gang.Namespace][gang.Name] = true
	m.gangs.WithLabelValues(gang.Namespace).Set(float64(len(m.counts[gang.Namespace])))
}

func (m *metrics) forget(gang types.NamespacedName) {
	m.showPhase(gang, [2]string{})
	m.mu.Lock()
	defer m.mu.Unlock()
	if names := m.counts[gang.Namespace]; names[gang.Name] {
		delete(names, gang.Name)
		m.gangs.WithLabelValues(gang.Namespace).Set(float64(len(names)))
		if len(names) == 0 {
			delete(m.counts, gang.Namespace)
			m.gangs.DeleteLabelValues(gang.Namespace)
		}
	}
	for _, v := range []*prometheus.GaugeVec{m.goodput, m.capacity, m.lost, m.step} {
		v.DeleteLabelValues(gang.Namespace, gang.Name)
	}
}
