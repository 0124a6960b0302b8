// Package preemption preempts pods for a gang, or for a pod of no gang, as gang/preemption decides, and holds the room
// that becomes free.
//
//   - A gang is preempted whole or not at all.
//   - Only units of lower priority are preempted, and units that use reserved room for longer than their declared run
//     time.
//   - Pods are preempted only if the framework's own filters accept the gang on the nodes without them.
//   - The freed room is held for the gang that preempted.
package preemption

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// Framework is the part of the scheduling framework that preemption uses.
type Framework interface {
	ClientSet() kubernetes.Interface
	EventRecorder() events.EventRecorderLogger
	SnapshotSharedLister() fwk.SharedLister
}

// Health reports whether a node is excluded for a namespace's gangs, and why.
type Health interface {
	Unhealthy(node *v1.Node, namespace string) (cause string, ill bool)
}

// Config is what New needs.
type Config struct {
	Framework Framework
	Args      *schedulingv1alpha1.HoldfastArgs
	Planner   *planner.Planner
	Gangs     *gangcache.Cache
	Health    Health
	Pods      corelisters.PodLister
	Budgets   policylisters.PodDisruptionBudgetLister
	// Stored is the client for Gangs, whose status lists their stored steps.
	Stored dynamic.NamespaceableResourceInterface
	// Wake makes the scheduler plan a gang, Activate makes it try pods, Publish writes a gang's status.
	Wake     func(klog.Logger, types.NamespacedName)
	Activate func(klog.Logger, []*v1.Pod)
	Publish  func(types.NamespacedName)
	Metrics  *Metrics
}

// Preemptor preempts for the pods of one scheduler profile.
type Preemptor struct {
	config          Config
	rooms           *HeldRooms
	singlePods      *singlePods
	lastCheckpoints *lastCheckpoints
	// blocked is the gang that was refused for lack of room in this cycle; tried is the last search of each gang, nextSearch when any gang
	// may search again. They belong to the scheduling cycle.
	blocked    *blocked
	tried      map[types.NamespacedName]attempt
	nextSearch time.Time
}

// New returns a Preemptor that holds room in the given HeldRooms.
func New(c Config, r *HeldRooms) *Preemptor {
	return &Preemptor{
		config:          c,
		rooms:           r,
		singlePods:      &singlePods{of: map[types.UID]*nomination{}},
		lastCheckpoints: &lastCheckpoints{gangs: c.Stored},
		tried:           map[types.NamespacedName]attempt{},
	}
}

// Block records the gang that was refused in this cycle for lack of room, and the cycle's nodes.
func (p *Preemptor) Block(key types.NamespacedName, of gangcache.Snapshot, nodes []fwk.NodeInfo, refusal gang.Refusal) {
	p.blocked = &blocked{key: key, snapshot: of, nodes: nodes, refusal: refusal}
}

// Unblock starts a cycle: no gang was refused yet.
func (p *Preemptor) Unblock() { p.blocked = nil }

// Placed releases the room held for a gang that was placed.
func (p *Preemptor) Placed(logger klog.Logger, key types.NamespacedName) {
	delete(p.tried, key)
	p.releaseRoom(logger, key)
}

// Metrics are one set for all profiles of a process.
type Metrics struct {
	searchSeconds prometheus.Histogram
	preempted     prometheus.Counter
}

// NewMetrics returns unregistered Metrics; buckets are those of the durations in which no pod is scheduled.
func NewMetrics(buckets []float64) *Metrics {
	return &Metrics{
		searchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_gang_preemption_search_seconds", Help: "Time to find the victims for a gang or a pod, or the room that it waits for, during which no pod is scheduled.", Buckets: buckets}),
		preempted:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_gang_preempted_pods_total", Help: "Pods that were preempted so that a gang of higher priority fits."}),
	}
}

// Collectors returns the metrics, to be registered once.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.searchSeconds, m.preempted}
}
