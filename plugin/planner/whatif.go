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

// supposed is a pod that is removed from a node or added to it for a what-if.
type supposed struct {
	info fwk.PodInfo
	node fwk.NodeInfo
}

// simulate removes and adds the supposed pods in the plugins' state, if either side has a rule about the other.
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

// WhatIf is a placement question on a cluster without some pods, judged by filters. It is valid for one scheduling cycle.
type WhatIf struct {
	ctx            context.Context
	p              *Planner
	nodes          []fwk.NodeInfo
	removed, added []supposed
	// assumed is room held for others; tree has the nodes without it, built on first use.
	assumed []topology.Assumed
	tree    *topology.Tree
}

// Without returns the cluster without the given pods, with others added, and with the assumed room taken.
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
	own := func(name string) (i int, ok bool) { // returns a node's index, after it was copied
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

// Nodes returns the nodes for a tree.
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

// Tree returns the fabric of those nodes.
func (w *WhatIf) Tree() *topology.Tree {
	if w.tree == nil {
		w.tree = topology.New(w.p.fabric.levels, w.Nodes()...)
	}
	return w.tree
}

// Gang returns the core's input with the nodes that filters exclude, without the gang's topology request.
func (w *WhatIf) Gang(of gangcache.Snapshot) (gang.Gang, error) {
	g, _, err := w.planCycle(of).gang()
	return g, err
}

// Place returns where the gang would be placed.
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
