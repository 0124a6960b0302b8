package serve

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
)

// mostLost is the most nodes whose loss a preview considers.
const mostLost = 2

// losses returns how an elastic gang would go on after the loss of one and of two nodes of a placement: those with most of its pods.
func (i *Instance) losses(
	ctx context.Context, nodes []fwk.NodeInfo, r gangcache.Snapshot, p gang.Placement,
) ([]v1alpha1.PreviewLoss, error) {
	if r.Required == 0 {
		return nil, nil
	}
	pods := map[string]int{}
	var used []string
	for _, a := range p.Assignments {
		if pods[a.Node]++; pods[a.Node] == 1 {
			used = append(used, a.Node)
		}
	}
	slices.SortStableFunc(used, func(a, b string) int { return cmp.Compare(pods[b], pods[a]) })
	var all []v1alpha1.PreviewLoss
	for n := 1; n <= min(mostLost, len(used)); n++ {
		l, err := i.loss(ctx, nodes, r, p, slices.Sorted(slices.Values(used[:n])))
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// loss places the pods of lost nodes again, on the other nodes, beside the pods that remain.
func (i *Instance) loss(
	ctx context.Context, nodes []fwk.NodeInfo, r gangcache.Snapshot, p gang.Placement, lost []string,
) (v1alpha1.PreviewLoss, error) {
	l := v1alpha1.PreviewLoss{Nodes: lost, Min: int32(r.Terms.Min)}
	held, err := i.Planner.GatherExpected(nodes, r)
	if err != nil {
		return l, fmt.Errorf("reading which room is held: %w", err)
	}
	at := p.At()
	var remaining []planner.Taking
	r.Members = slices.Clone(r.Members)
	for k := range r.Members {
		m := &r.Members[k]
		node := at[m.Pod.Name]
		switch {
		case node == "":
		case slices.Contains(lost, node):
			m.State, m.Node = gangcache.Pending, ""
			l.Lost++
		default:
			if m.State == gangcache.Pending {
				remaining = append(remaining, planner.Taking{Pod: m.Pod, Node: node})
			}
			m.State, m.Node = gangcache.Bound, node
		}
	}
	r.Required = r.Least(0)
	left := slices.DeleteFunc(slices.Clone(nodes), func(n fwk.NodeInfo) bool { return slices.Contains(lost, n.Node().Name) })
	w, err := i.Planner.Without(ctx, left, nil, remaining, held)
	if err != nil {
		return l, err
	}
	again, refusal, err := w.Place(r)
	if refusal == nil {
		l.Replaced = min(int32(again.Placed), l.Lost)
		at = again.At()
	}
	for k := range r.Members {
		if m := &r.Members[k]; m.State == gangcache.Pending && refusal == nil && at[m.Pod.Name] != "" {
			m.State, m.Node = gangcache.Bound, at[m.Pod.Name]
		}
	}
	l.Pods = int32(r.Useful())
	l.Idle = int32(r.OnNodes()) - l.Pods
	return l, err
}
