package planner

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// supposed is a pod that is supposed to be gone from a node, or to be there.
type supposed struct {
	info fwk.PodInfo
	node fwk.NodeInfo
}

// simulate tells plugins that the removed pods are gone, and that the added ones are there, as far as either side has a rule about the
// other.
func (s *planCycle) simulate(state fwk.CycleState, pod *v1.Pod) error {
	all := relatesToPods(pod) || len(judgedVolumes(pod.Spec.Volumes)) > 0
	for _, r := range s.removed {
		if !all && len(r.info.GetRequiredAntiAffinityTerms()) == 0 {
			continue
		}
		if status := s.p.config.Framework.RunPreFilterExtensionRemovePod(s.ctx, state, pod, r.info, r.node); !status.IsSuccess() {
			return fmt.Errorf("supposing pod %s to be gone: %w", r.info.GetPod().Name, status.AsError())
		}
	}
	for _, a := range s.added {
		if !all && len(a.info.GetRequiredAntiAffinityTerms()) == 0 {
			continue
		}
		if status := s.p.config.Framework.RunPreFilterExtensionAddPod(s.ctx, state, pod, a.info, a.node); !status.IsSuccess() {
			return fmt.Errorf("supposing pod %s on node %s: %w", a.info.GetPod().Name, a.node.Node().Name, status.AsError())
		}
	}
	return nil
}

// WhatIf is the cluster as it would be without some pods, as filters judge it. It is good for one scheduling cycle.
type WhatIf struct {
	ctx            context.Context
	p              *Planner
	nodes          []fwk.NodeInfo
	removed, added []supposed
	// assumed is what others hold; tree is of the nodes less that, made where it is asked for.
	assumed []topology.Assumed
	tree    *topology.Tree
}

// Without returns the cluster as it would be if pods were not on their nodes, others were added, and others held what is assumed.
func (p *Planner) Without(
	ctx context.Context,
	all []fwk.NodeInfo,
	pods []*v1.Pod,
	adding []Taking,
	taken []topology.Assumed,
) (*WhatIf, error) {
	w := &WhatIf{ctx: ctx, p: p, nodes: slices.Clone(all), assumed: taken}
	at := make(map[string]int, len(all))
	for i, n := range all {
		at[n.Node().Name] = i
	}
	copied := map[int]bool{}
	own := func(name string) (i int, ok bool) { // finds a node, which is a copy then
		if i, ok = at[name]; ok && !copied[i] {
			copied[i], w.nodes[i] = true, w.nodes[i].Snapshot()
		}
		return i, ok
	}
	for _, pod := range pods {
		i, ok := own(pod.Spec.NodeName)
		if !ok {
			continue
		}
		info := infoOn(w.nodes[i], pod)
		if info == nil || w.nodes[i].RemovePod(klog.FromContext(ctx), pod) != nil {
			continue
		}
		w.removed = append(w.removed, supposed{info: info, node: all[i]})
	}
	for _, t := range adding {
		i, ok := own(t.Node)
		if !ok {
			continue
		}
		info, err := framework.NewPodInfo(t.Pod)
		if err != nil {
			return nil, fmt.Errorf("reading the affinity of pod %s: %w", t.Pod.Name, err)
		}
		w.nodes[i].AddPodInfo(info)
		w.added = append(w.added, supposed{info: info, node: all[i]})
	}
	return w, nil
}

// Nodes is how a tree is told of the nodes.
func (w *WhatIf) Nodes() []topology.Node {
	all := w.p.Nodes(w.nodes)
	at := make(map[string]int, len(all))
	for i := range all {
		at[all[i].Name] = i
	}
	for _, t := range w.assumed {
		i, ok := at[t.Node]
		if !ok {
			continue
		}
		h := t.Usage
		for what, v := range h.Resources {
			all[i].Free[what] -= v
		}
		all[i].Used, all[i].Exclusive = all[i].Used || h.Tenant, all[i].Exclusive || h.Exclusive
		if h.Tenant {
			all[i].Tenants++
		}
		if h.Spares > all[i].Spares {
			all[i].Spares, all[i].SparesAt = h.Spares, h.SparesAt
		}
	}
	return all
}

// Tree is the fabric of those nodes.
func (w *WhatIf) Tree() *topology.Tree {
	if w.tree == nil {
		w.tree = topology.New(w.p.fabric.levels, w.Nodes()...)
	}
	return w.tree
}

// Gang is the gang as the core is asked about it, with the nodes that filters rule out; what it asks of the fabric is not in it.
func (w *WhatIf) Gang(of gangcache.Snapshot) (gang.Gang, error) {
	g, _, err := w.planCycle(of).gang()
	return g, err
}

// Place says where the gang would be.
func (w *WhatIf) Place(of gangcache.Snapshot) (gang.Placement, *gang.Refusal, error) {
	s := w.planCycle(of)
	s.tree = w.Tree()
	return s.place()
}

func (w *WhatIf) planCycle(of gangcache.Snapshot) *planCycle {
	s := newPlanCycle(w.ctx, w.p, w.nodes, of)
	s.removed, s.added = w.removed, w.added
	return s
}

func infoOn(n fwk.NodeInfo, pod *v1.Pod) fwk.PodInfo {
	for _, info := range n.GetPods() {
		if info.GetPod().UID == pod.UID {
			return info
		}
	}
	return nil
}
