package planner

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/topology"
)

// nodeVersion identifies the state of a node in the tree: its generation in the snapshot, the Node, and its pods.
type nodeVersion struct {
	generation int64
	node       *v1.Node
	pods       map[types.UID]bool
}

func nodeVersionOf(n fwk.NodeInfo) nodeVersion {
	v := nodeVersion{n.GetGeneration(), n.Node(), make(map[types.UID]bool, len(n.GetPods()))}
	for _, info := range n.GetPods() {
		v.pods[info.GetPod().UID] = true
	}
	return v
}

// gains reports whether a node's free room may have grown: the Node changed, a pod left, or a pod requests less.
func (p *Planner) gains(was, is nodeVersion, now topology.Node) bool {
	if was.node != is.node {
		return true
	}
	for uid := range was.pods {
		if !is.pods[uid] {
			return true
		}
	}
	i, ok := p.tree.Find(now.Name)
	for name, free := range now.Free {
		if !ok || free > p.tree.Free(i, name) {
			return true
		}
	}
	return false
}

// Follow updates the tree to the snapshot; unchanged nodes are skipped.
func (p *Planner) Follow(nodes []fwk.NodeInfo) {
	p.config.Health.Observe(len(nodes))
	p.noteFreed()
	if len(p.seen) == 0 && len(nodes) > 0 {
		p.rebuild(nodes)
		return
	}
	for _, n := range nodes {
		name := n.Node().Name
		have, ok := p.seen[name]
		if !ok || have.generation != n.GetGeneration() {
			if ok && have.node.UID != n.Node().UID {
				p.config.Health.Renew(name)
			}
			p.fabric.countLabels(n.Node())
			is, now := nodeVersionOf(n), p.fabric.node(n)
			if p.gains(have, is, now) {
				p.gained.add(name)
			}
			p.tree.Set(now)
			p.seen[name] = is
		}
	}
	if len(p.seen) > len(nodes) {
		p.dropGone(nodes)
	}
	if p.fabric.changed() {
		p.rebuild(nodes)
	}
}

// dropGone removes nodes that the snapshot lacks.
func (p *Planner) dropGone(nodes []fwk.NodeInfo) {
	there := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		there[n.Node().Name] = true
	}
	for name := range p.seen {
		if !there[name] {
			p.tree.Remove(name)
			p.fabric.forgetNode(name)
			delete(p.seen, name)
			p.gained.all()
			p.config.Health.Renew(name)
		}
	}
}

func (p *Planner) rebuild(nodes []fwk.NodeInfo) {
	p.fabric.forget()
	for _, n := range nodes {
		p.fabric.countLabels(n.Node())
	}
	p.fabric.recognise()
	p.seen = make(map[string]nodeVersion, len(nodes))
	all := make([]topology.Node, len(nodes))
	for i, n := range nodes {
		p.seen[n.Node().Name] = nodeVersionOf(n)
		all[i] = p.fabric.node(n)
	}
	p.tree = topology.New(p.fabric.levels, all...)
	p.gained.all()
}

// Nodes translates the snapshot's nodes for a tree.
func (p *Planner) Nodes(nodes []fwk.NodeInfo) []topology.Node {
	all := make([]topology.Node, len(nodes))
	for i, n := range nodes {
		all[i] = p.fabric.node(n)
	}
	return all
}
