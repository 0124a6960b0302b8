// Package preemption decides who makes room for a gang, or for a pod of no gang, and what room is held for whom. It promises
// that whole gangs leave or none of their members, nobody who is not of lower priority but those who overstay in reserved
// room, and nobody where the gang would not fit then, as the framework's filters judge it; and that what becomes free is kept
// for those it became free for.
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

// Framework is what is asked of the scheduling framework.
type Framework interface {
	ClientSet() kubernetes.Interface
	EventRecorder() events.EventRecorderLogger
	SnapshotSharedLister() fwk.SharedLister
}

// Health says of a node whether nothing of a gang may go there, and why.
type Health interface {
	Ill(*v1.Node) (cause string, ill bool)
}

// Config is what a Preemptor works with.
type Config struct {
	Framework Framework
	Args      *schedulingv1alpha1.HoldfastArgs
	Planner   *planner.Planner
	Gangs     *gangcache.Cache
	Health    Health
	Pods      corelisters.PodLister
	Budgets   policylisters.PodDisruptionBudgetLister
	// Stored are the Gangs, whose status says what they have stored.
	Stored dynamic.NamespaceableResourceInterface
	// Wake has a gang planned, Activate has pods tried, Publish has a gang's status written.
	Wake     func(klog.Logger, types.NamespacedName)
	Activate func(klog.Logger, []*v1.Pod)
	Publish  func(types.NamespacedName)
	Metrics  *Metrics
}

// Preemptor makes room for those whom one scheduler profile places.
type Preemptor struct {
	config       Config
	reservations *Reservations
	lone         *lone
	worth        *worth
	// blocked is the gang that was refused in this cycle for lack of room; tried is when room was looked for last, nextSearch
	// when it may be for anybody. They belong to the scheduling cycle.
	blocked    *blocked
	tried      map[types.NamespacedName]attempt
	nextSearch time.Time
}

// New makes a Preemptor that holds room in the given Reservations.
func New(c Config, r *Reservations) *Preemptor {
	return &Preemptor{config: c, reservations: r, lone: &lone{of: map[types.UID]*promise{}}, worth: &worth{gangs: c.Stored}, tried: map[types.NamespacedName]attempt{}}
}

// Block notes the gang that was refused in this cycle for lack of room, with what that was seen on; Unblock notes that none was.
func (p *Preemptor) Block(key types.NamespacedName, of gangcache.Snapshot, nodes []fwk.NodeInfo, no gang.Refusal) {
	p.blocked = &blocked{key: key, roster: of, nodes: nodes, refusal: no}
}

// Unblock notes that no gang was refused yet in this cycle.
func (p *Preemptor) Unblock() { p.blocked = nil }

// Placed ends what is held for a gang that has its places.
func (p *Preemptor) Placed(logger klog.Logger, key types.NamespacedName) {
	delete(p.tried, key)
	p.letIn(logger, key)
}

// Metrics are one set for all profiles of a process.
type Metrics struct {
	searched  prometheus.Histogram
	preempted prometheus.Counter
}

// NewMetrics makes them; buckets are those of times that nobody is scheduled in.
func NewMetrics(buckets []float64) *Metrics {
	return &Metrics{
		searched:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_gang_room_search_seconds", Help: "How long it took to find out who makes room for a gang or a pod, or which room it waits for; nobody is scheduled meanwhile.", Buckets: buckets}),
		preempted: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_gang_preempted_pods_total", Help: "Pods that were told to leave so that a gang of higher priority fits."}),
	}
}

// Collectors are what is to be registered, once.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.searched, m.preempted}
}
