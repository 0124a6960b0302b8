// Package planner finds a place for a gang on a scheduling cycle's snapshot, as it is or as if some pods were gone.
// It promises that a node is named only if the framework's own filters accept it, beside the room of open plans and
// reservations, and that a call has no side effects. It keeps what depends on a snapshot: the tree of free counts,
// filter results for nodes that did not change since, and failed dry runs of plans.
package planner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// Framework is what planning needs of the scheduling framework. Not all of it is on a plugin's handle.
type Framework interface {
	ProfileName() string
	ListPlugins() *schedulerconfig.Plugins
	Parallelizer() fwk.Parallelizer
	SnapshotSharedLister() fwk.SharedLister
	SharedDRAManager() fwk.SharedDRAManager
	NominatedPodsForNode(node string) []fwk.PodInfo
	RunPreFilterPlugins(context.Context, fwk.CycleState, *v1.Pod) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string])
	RunPreFilterExtensionAddPod(ctx context.Context, state fwk.CycleState, of *v1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status
	RunPreFilterExtensionRemovePod(ctx context.Context, state fwk.CycleState, of *v1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status
	RunFilterPluginsWithNominatedPods(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status
	RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status
	RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string)
}

var _ Framework = framework.Framework(nil)

// RejectingNode is the cause of a node that is excluded for a while because it rejects pods.
const RejectingNode = "RejectsPods"

// Health says which nodes are excluded from plans, whatever filters say.
type Health interface {
	// Unhealthy reports whether a node is excluded for a namespace's gangs, and the cause.
	Unhealthy(node *v1.Node, namespace string) (cause string, ill bool)
	// Observe takes the number of nodes in a snapshot; Renew says which Node is gone or was recreated under its name.
	Observe(nodes int)
	Renew(node string)
}

// Config is what a Planner plans with.
type Config struct {
	Framework Framework
	Args      schedulingv1alpha1.HoldfastArgs
	Gangs     *gangcache.Cache
	Health    Health
	// BoundVolumes tells pods apart by volumes of their own that are there already; nil: none are.
	BoundVolumes func(*v1.Pod) string
	// Tiers are Volcano's HyperNodes; nil: none are looked for.
	Tiers func() *external.Tiers
	// Reserved returns the room that a gang of that priority and end must keep out of; degraded: it lost members.
	Reserved func(gang types.NamespacedName, priority int32, degraded bool, end time.Time) []topology.Assumed
	// TakeFreed returns, once, the nodes on which held room was given up; nil: none is held.
	TakeFreed func() []string
	// Wake has a gang planned.
	Wake    func(klog.Logger, types.NamespacedName)
	Metrics *Metrics
}

// Planner plans for one scheduler profile. Only the scheduling cycle calls it, and cycles do not overlap; but filters call
// Attendant, Free and Requests concurrently.
type Planner struct {
	config Config
	// tree follows the snapshot; seen says what was seen of each node in it, fabric where nodes are.
	tree   *topology.Tree
	seen   map[string]nodeVersion
	fabric fabric
	// verdicts are what filters said of nodes, awaited the nodes that pods are nominated for.
	verdicts verdicts
	awaited  map[string]bool
	// plans are turns for plans that ask much, trials those for trying a plan on.
	plans, trials *turns
	// gained are the nodes that may take more than they did; order is whose turn it is among gangs that wait.
	gained gained
	order  *order
	// conditional: the last answer may change without a node that gained.
	conditional bool
	// brief: it is only asked whether a gang would fit.
	brief bool
}

// New makes a Planner.
func New(c Config) *Planner {
	p := &Planner{config: c, tree: topology.New(nil), seen: map[string]nodeVersion{}, fabric: newFabric(c.Args)}
	p.order = newOrder()
	p.plans, p.trials = newTurns(c.Gangs.Knows), newTurns(c.Gangs.Knows)
	p.fabric.byClaim, p.fabric.tiers = claims.NewExtended(c.Framework).ByClaim, c.Tiers
	return p
}

// gangOf is the gang of this profile that a pod is in.
func (p *Planner) gangOf(pod *v1.Pod) (types.NamespacedName, bool) {
	return gangcache.GangOf(pod, p.config.Framework.ProfileName())
}

// Attendant reports whether a pod belongs to its node rather than to a job, so that it does not count as using the
// node.
func (p *Planner) Attendant(pod *v1.Pod) bool { return p.fabric.attendant(pod) }

// Location returns where in the fabric a node is, as text: "zone=a,nvlink=c7".
func (p *Planner) Location(node *v1.Node) string { return p.fabric.place(node) }

// Usage returns what a pod that is on its way to a node will use there.
func (p *Planner) Usage(info fwk.PodInfo) topology.Usage { return p.fabric.usage(info) }

// Requests are what a pod takes from a node, itself included.
func (p *Planner) Requests(info fwk.PodInfo) topology.Resources { return p.fabric.asked(info) }

// Free is what is left of a node.
func (p *Planner) Free(n fwk.NodeInfo) topology.Resources { return p.fabric.left(n) }

// Levels are those of the fabric, widest first.
func (p *Planner) Levels() []topology.Level { return p.fabric.levels }

// Cooldown returns how long after a search no other is made, for any gang: nothing is scheduled during a search, so all
// of them together take at most a tenth of the time.
func Cooldown(took time.Duration) time.Duration { return 10 * took }

// Answer computes the gang's placement on this cycle's snapshot.
func (p *Planner) Answer(ctx context.Context, nodes []fwk.NodeInfo, r gangcache.Snapshot) (gang.Placement, *gang.Refusal, error) {
	p.Follow(nodes)
	p.config.Metrics.measure(p.tree, time.Now())
	defer p.tree.Undo(p.tree.Mark())
	expected, err := p.GatherExpected(nodes, r)
	if err != nil {
		return gang.Placement{}, nil, err
	}
	p.take(expected)
	s := newPlanCycle(ctx, p, nodes, r)
	s.brief = p.brief
	placement, refusal, err := s.place()
	p.conditional = p.conditional || s.conditional
	return placement, refusal, err
}

// GatherExpected returns, and notes for the answer to come, what is held for pods on their way to a node: members of open plans, as the
// gang cache knows them, and pods of at least the gang's priority for which something was preempted.
func (p *Planner) GatherExpected(nodes []fwk.NodeInfo, r gangcache.Snapshot) ([]topology.Assumed, error) {
	own := make(map[types.UID]bool, len(r.Members))
	for _, m := range r.Members {
		own[m.Pod.UID] = m.State == gangcache.Pending
	}
	var all []topology.Assumed
	held := map[types.UID]bool{}
	expected := p.config.Gangs.Expected()
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		pods := expected[name]
		slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
		for _, pod := range pods {
			info, err := framework.NewPodInfo(pod)
			if err != nil {
				return nil, fmt.Errorf("reading the affinity of pod %s: %w", pod.Name, err)
			}
			if !own[pod.UID] {
				all = append(all, topology.Assumed{Node: name, Usage: p.fabric.usage(info)})
			}
			held[pod.UID] = true
		}
	}
	priority := corev1helpers.PodPriority(r.Members[0].Pod)
	p.awaited, p.conditional = map[string]bool{}, false
	gang, _ := p.gangOf(r.Members[0].Pod)
	all = append(all, p.config.Reserved(gang, priority, r.Degraded(), settings.WouldEnd(r.Members[0].Pod, time.Now()))...)
	for _, n := range nodes {
		name := n.Node().Name
		for _, info := range p.config.Framework.NominatedPodsForNode(name) {
			pod := info.GetPod()
			p.awaited[name] = true
			if own[pod.UID] || held[pod.UID] || corev1helpers.PodPriority(pod) < priority {
				continue
			}
			all = append(all, topology.Assumed{Node: name, Usage: p.fabric.usage(info)})
			p.conditional = true // it may go without a trace on the node
		}
	}
	return all, nil
}

// take takes that from the tree.
func (p *Planner) take(expected []topology.Assumed) {
	for _, t := range expected {
		if i, ok := p.tree.Find(t.Node); ok {
			p.tree.Assume(i, t.Usage)
		}
	}
}
