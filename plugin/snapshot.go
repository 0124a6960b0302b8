package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// sight is what was seen of a node: its generation in the snapshot, and which Node of its name it is.
type sight struct {
	generation int64
	uid        types.UID
}

func sightOf(n fwk.NodeInfo) sight { return sight{n.GetGeneration(), n.Node().UID} }

// follow brings the tree to the snapshot's state; nodes that did not change since are not looked at.
func (p *Plugin) follow(nodes []fwk.NodeInfo) {
	p.rejects.look(time.Now(), len(nodes))
	if len(p.seen) == 0 && len(nodes) > 0 {
		p.rebuild(nodes)
		return
	}
	for _, n := range nodes {
		name := n.Node().Name
		have, ok := p.seen[name]
		if !ok || have.generation != n.GetGeneration() {
			if ok && have.uid != n.Node().UID {
				p.rejects.renew(name)
			}
			p.fabric.see(n.Node())
			p.tree.Set(p.fabric.node(n))
			p.seen[name] = sightOf(n)
		}
	}
	if len(p.seen) > len(nodes) {
		p.dropGone(nodes)
	}
	if p.fabric.changed() {
		p.rebuild(nodes)
	}
}

// dropGone takes out nodes that the snapshot does not have any more.
func (p *Plugin) dropGone(nodes []fwk.NodeInfo) {
	there := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		there[n.Node().Name] = true
	}
	for name := range p.seen {
		if !there[name] {
			p.tree.Remove(name)
			p.fabric.forgetNode(name)
			delete(p.seen, name)
			p.rejects.renew(name)
		}
	}
}

func (p *Plugin) rebuild(nodes []fwk.NodeInfo) {
	p.fabric.forget()
	for _, n := range nodes {
		p.fabric.see(n.Node())
	}
	p.fabric.recognise()
	p.seen = make(map[string]sight, len(nodes))
	all := make([]topology.Node, len(nodes))
	for i, n := range nodes {
		p.seen[n.Node().Name] = sightOf(n)
		all[i] = p.fabric.node(n)
	}
	p.tree = topology.New(p.fabric.levels, all...)
}

func resources(r fwk.Resource) topology.Resources {
	all := topology.Resources{
		string(v1.ResourceCPU):              r.GetMilliCPU(),
		string(v1.ResourceMemory):           r.GetMemory(),
		string(v1.ResourceEphemeralStorage): r.GetEphemeralStorage(),
	}
	for name, v := range r.GetScalarResources() {
		all[string(name)] = v
	}
	return all
}

// asked is what a pod takes from a node, itself included.
func (f *fabric) asked(info fwk.PodInfo) topology.Resources {
	all := resources(info.CalculateResource().Resource)
	for name, v := range all {
		if v == 0 {
			delete(all, name)
		}
	}
	all[string(v1.ResourcePods)] = 1
	return f.claimed(info.GetPod(), all)
}

// expected lists what is held for pods that are on their way to a node: members of open plans, as the cache of gangs knows
// them, and pods of at least the gang's priority for which something was preempted.
func (p *Plugin) expected(nodes []fwk.NodeInfo, r gangcache.Snapshot) ([]topology.Taking, error) {
	own := make(map[types.UID]bool, len(r.Members))
	for _, m := range r.Members {
		own[m.Pod.UID] = m.State == gangcache.Pending
	}
	var all []topology.Taking
	held := map[types.UID]bool{}
	expected := p.gangs.Expected()
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		pods := expected[name]
		slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
		for _, pod := range pods {
			info, err := framework.NewPodInfo(pod)
			if err != nil {
				return nil, fmt.Errorf("reading the affinity of pod %s: %w", pod.Name, err)
			}
			if !own[pod.UID] {
				all = append(all, topology.Taking{Node: name, Hold: p.fabric.hold(info)})
			}
			held[pod.UID] = true
		}
	}
	priority := corev1helpers.PodPriority(r.Members[0].Pod)
	p.awaited = map[string]bool{}
	gang, _ := p.mine(r.Members[0].Pod)
	all = append(all, p.holds.against(gang, priority, settings.WouldEnd(r.Members[0].Pod, time.Now()))...)
	for _, n := range nodes {
		name := n.Node().Name
		for _, info := range p.handle.NominatedPodsForNode(name) {
			pod := info.GetPod()
			p.awaited[name] = true
			if own[pod.UID] || held[pod.UID] || corev1helpers.PodPriority(pod) < priority {
				continue
			}
			all = append(all, topology.Taking{Node: name, Hold: p.fabric.hold(info)})
		}
	}
	return all, nil
}

// take takes that from the tree.
func (p *Plugin) take(expected []topology.Taking) {
	for _, t := range expected {
		if i, ok := p.tree.Find(t.Node); ok {
			p.tree.Hold(i, t.Hold)
		}
	}
}

// claimed moves what a pod gets by claims to the slot: its extended resources that a device class serves, and its claims.
func (f *fabric) claimed(pod *v1.Pod, asked topology.Resources) topology.Resources {
	byClaim := len(pod.Spec.ResourceClaims) > 0
	for name := range asked {
		if claims.IsExtended(name) && f.byClaim != nil && f.byClaim(v1.ResourceName(name)) {
			delete(asked, name)
			byClaim = true
		}
	}
	if byClaim {
		asked[claims.Slot] = 1
	}
	return asked
}
