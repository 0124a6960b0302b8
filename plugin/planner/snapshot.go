package planner

import (
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/topology"
)

// nodeVersion is what was seen of a node: its generation in the snapshot, and which Node of its name it is.
type nodeVersion struct {
	generation int64
	uid        types.UID
}

func nodeVersionOf(n fwk.NodeInfo) nodeVersion { return nodeVersion{n.GetGeneration(), n.Node().UID} }

// Follow updates the tree to the snapshot; unchanged nodes are skipped.
func (p *Planner) Follow(nodes []fwk.NodeInfo) {
	p.config.Health.Observe(len(nodes))
	if len(p.seen) == 0 && len(nodes) > 0 {
		p.rebuild(nodes)
		return
	}
	for _, n := range nodes {
		name := n.Node().Name
		have, ok := p.seen[name]
		if !ok || have.generation != n.GetGeneration() {
			if ok && have.uid != n.Node().UID {
				p.config.Health.Renew(name)
			}
			p.fabric.countLabels(n.Node())
			p.tree.Set(p.fabric.node(n))
			p.seen[name] = nodeVersionOf(n)
		}
	}
	if len(p.seen) > len(nodes) {
		p.dropGone(nodes)
	}
	if p.fabric.changed() {
		p.rebuild(nodes)
	}
}

// dropGone removes nodes that are not in the snapshot any more.
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
}

// Nodes lists the nodes as the tree was told of them.
func (p *Planner) Nodes(nodes []fwk.NodeInfo) []topology.Node {
	all := make([]topology.Node, len(nodes))
	for i, n := range nodes {
		all[i] = p.fabric.node(n)
	}
	return all
}
