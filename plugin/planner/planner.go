// Package planner computes the placement of a gang on the snapshot of a scheduling cycle. For a what-if the package leaves some pods out of
// the snapshot. A placement uses a node only if the scheduler framework's own filters accept the node, and leaves the room of other open
// plans and reservations free. The computation changes no state outside the package.
//
// The package caches three kinds of results that depend on a snapshot: the tree of free resources, the results of filters for unchanged
// nodes, and failed dry runs of plans. The package also enforces the order of waiting gangs. Before a pod takes room, GiveWay checks
// whether a waiting gang that is ahead of the pod in this order could use the room. If so, GiveWay wakes that gang, and the caller rejects
// the pod.
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

// Framework is the part of the scheduling framework that planning uses. Not all of it is on a plugin's handle.
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

// RejectingNode is the cause of a node that is excluded for a time because it rejects pods.
const RejectingNode = "RejectsPods"

// Health reports nodes that are excluded from plans whatever filters return.
type Health interface {
	// Unhealthy reports whether a node is excluded for a namespace's gangs, and the cause.
	Unhealthy(node *v1.Node, namespace string) (cause string, ill bool)
	// Observe receives the number of nodes in a snapshot; Renew receives a Node that is gone or was re-created under its name.
	Observe(nodes int)
	Renew(node string)
}

// Config is what New needs.
type Config struct {
	Framework Framework
	Args      schedulingv1alpha1.HoldfastArgs
	Gangs     *gangcache.Cache
	Health    Health
	// BoundVolumes returns a pod's key for volumes of its own that exist; nil: none is used. See the function BoundVolumes.
	BoundVolumes func(*v1.Pod) string
	// Tiers returns Volcano's HyperNodes; nil: they are not used.
	Tiers func() *external.Tiers
	// Reserved returns the room that a gang of that priority and end must not use; degraded: the gang lost members.
	Reserved func(gang types.NamespacedName, priority int32, degraded bool, end time.Time) []topology.Assumed
	// TakeFreed returns, once, the nodes on which held room was released; nil: no room is held.
	TakeFreed func() []string
	// Wake makes the scheduler plan a gang.
	Wake    func(klog.Logger, types.NamespacedName)
	Metrics *Metrics
}

// Planner plans for one scheduler profile. Only the scheduling cycle calls it, and cycles do not overlap; but filters call Attendant, Free
// and Requests concurrently.
type Planner struct {
	config Config
	now    func() time.Time
	// tree follows the snapshot; seen is the version of each of its nodes, fabric translates nodes.
	tree   *topology.Tree
	seen   map[string]nodeVersion
	fabric fabric
	// verdicts are cached filter results, awaited the nodes for which pods are nominated.
	verdicts verdicts
	awaited  map[string]bool
	// plans are turns for plans of many checks, trials those for dry-run reserves.
	plans, trials *turns
	// gained are nodes whose free room may have grown; order decides whose turn it is.
	gained gained
	order  *order
	// conditional: the last answer may change without a gained node.
	conditional bool
	// brief: the present plan only answers whether a gang fits.
	brief bool
}

// New returns a Planner without nodes.
func New(c Config) *Planner {
	p := &Planner{config: c, now: time.Now, tree: topology.New(nil), seen: map[string]nodeVersion{}, fabric: newFabric(c.Args)}
	p.order = newOrder()
	now := func() time.Time { return p.now() }
	p.plans, p.trials = newTurns(c.Gangs.Knows, now), newTurns(c.Gangs.Knows, now)
	p.fabric.byClaim, p.fabric.tiers = claims.NewExtended(c.Framework).ByClaim, c.Tiers
	return p
}

// gangOf returns the gang of a pod in this profile.
func (p *Planner) gangOf(pod *v1.Pod) (types.NamespacedName, bool) {
	return gangcache.GangOf(pod, p.config.Framework.ProfileName())
}

// Attendant reports whether a pod belongs to its node rather than to a job, so that it does not count as using the node.
func (p *Planner) Attendant(pod *v1.Pod) bool { return p.fabric.attendant(pod) }

// Location returns a node's topology domain as text: "zone=a,nvlink=c7".
func (p *Planner) Location(node *v1.Node) string { return p.fabric.place(node) }

// Usage returns what a pod that is on its way to a node will use there.
func (p *Planner) Usage(info fwk.PodInfo) topology.Usage { return p.fabric.usage(info) }

// Requests returns what a pod takes from a node, with one pod of the node's pod count.
func (p *Planner) Requests(info fwk.PodInfo) topology.Resources { return p.fabric.asked(info) }

// Free returns the free resources of a node.
func (p *Planner) Free(n fwk.NodeInfo) topology.Resources { return p.fabric.left(n) }

// Levels returns the levels of the fabric, widest first.
func (p *Planner) Levels() []topology.Level { return p.fabric.levels }

// Cooldown returns how long after a search no other search starts, for any gang: no pod is scheduled during a search, so all of them
// together take at most a tenth of the time.
func Cooldown(took time.Duration) time.Duration { return 10 * took }

// Answer computes the gang's placement on this cycle's snapshot.
func (p *Planner) Answer(ctx context.Context, nodes []fwk.NodeInfo, r gangcache.Snapshot) (gang.Placement, *gang.Refusal, error) {
	p.Follow(nodes)
	p.config.Metrics.measure(p.tree, time.Now())
	defer p.tree.Undo(p.tree.Mark())
	r, expected, err := p.withoutHeld(nodes, r)
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

// First computes the placement of a plan or, if that is refused, of the first in its Else that is not, and returns what it placed. A
// refusal is that of the plan itself.
func (p *Planner) First(
	ctx context.Context, nodes []fwk.NodeInfo, r gangcache.Snapshot,
) (of gangcache.Snapshot, placement gang.Placement, refusal *gang.Refusal, err error) {
	conditional := false
	for _, of := range append([]gangcache.Snapshot{r}, r.Else...) {
		of.Leader = r.Leader
		placement, why, err := p.Answer(ctx, nodes, of)
		if err != nil || why == nil {
			return of, placement, nil, err
		}
		conditional = conditional || p.conditional
		if refusal == nil {
			refusal = why
		}
		if why.Undecided {
			break
		}
	}
	p.conditional = conditional
	return r, gang.Placement{}, refusal, nil
}

// Outdated reports whether the gang cache and this cycle's snapshot disagree on the node of a member: the scheduler's cache receives the
// end of a pod by itself. A plan would count that pod as placed, and could give its node away.
func (p *Planner) Outdated(of gangcache.Snapshot) bool {
	nodes := p.config.Framework.SnapshotSharedLister().NodeInfos()
	return slices.ContainsFunc(of.Members, func(m gangcache.Member) bool {
		if m.State != gangcache.Reserved && m.State != gangcache.Bound {
			return false
		}
		is := func(on fwk.PodInfo) bool { return on.GetPod().UID == m.Pod.UID }
		node, err := nodes.Get(m.Node)
		return err == nil && !slices.ContainsFunc(node.GetPods(), is)
	})
}

// withoutHeld returns what a plan is made for, and the room held against it. Surplus is left out of a plan if room is held against it that
// what the gang needs may use.
func (p *Planner) withoutHeld(nodes []fwk.NodeInfo, r gangcache.Snapshot) (gangcache.Snapshot, []topology.Assumed, error) {
	all, err := p.GatherExpected(nodes, r)
	needed, surplus, wants := r.Needed()
	if err != nil || len(surplus) == 0 || !wants {
		return r, all, err
	}
	conditional := p.conditional
	own, err := p.GatherExpected(nodes, needed)
	if err == nil && len(own) == len(all) {
		p.conditional = conditional
		return r, all, nil
	}
	return needed, own, err
}

// GatherExpected returns, and stores for the next answer, the room held for pods on their way to a node: members of open plans, and pods of
// at least the gang's priority for which pods were preempted.
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
	priority := r.Priority()
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
			p.conditional = true // the nomination may end without a change of the node
		}
	}
	return all, nil
}

// take takes the expected usage from the tree.
func (p *Planner) take(expected []topology.Assumed) {
	for _, t := range expected {
		if i, ok := p.tree.Find(t.Node); ok {
			p.tree.Assume(i, t.Usage)
		}
	}
}
