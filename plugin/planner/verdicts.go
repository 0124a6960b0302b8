package planner

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
)

// keptRoles is the number of roles whose filter results are cached.
const keptRoles = 8

// byNodeAlone are filters whose result depends only on the pod and the node.
var byNodeAlone = sets.New(
	names.NodeName,
	names.NodeUnschedulable,
	names.TaintToleration,
	names.NodeAffinity,
	names.NodePorts,
	names.NodeResourcesFit,
	names.NodeDeclaredFeatures,
)

// verdicts caches the filter results of a role on a node until the node changes: a gang that is planned again, or one like the last gang,
// needs filters only on changed nodes. A role for which any filter outside byNodeAlone runs is not cached. They belong to the scheduling
// cycle.
type verdicts struct {
	roles []*roleVerdicts // latest first
	// filters are all filters of the profile.
	filters []string
}

type roleVerdicts struct {
	role  string
	nodes map[string]verdict
}

// verdict is a filter result for a version of a node.
type verdict struct {
	generation int64
	out        bool
	cause      gang.Cause
}

// of returns the cached results of a role, nil if they cannot be cached: state and only are PreFilter's results.
func (v *verdicts) of(role string, state fwk.CycleState, only *fwk.PreFilterResult, list func() *schedulerconfig.Plugins) *roleVerdicts {
	if v.filters == nil {
		for _, f := range list().Filter.Enabled {
			v.filters = append(v.filters, f.Name)
		}
	}
	skipped := state.GetSkipFilterPlugins()
	if !only.AllNodes() || slices.ContainsFunc(v.filters, func(f string) bool { return !skipped.Has(f) && !byNodeAlone.Has(f) }) {
		return nil
	}
	at := slices.IndexFunc(v.roles, func(r *roleVerdicts) bool { return r.role == role })
	if at < 0 {
		v.roles = append(v.roles[:min(len(v.roles), keptRoles-1)], &roleVerdicts{role: role, nodes: map[string]verdict{}})
		at = len(v.roles) - 1
	}
	r := v.roles[at]
	copy(v.roles[1:at+1], v.roles[:at])
	v.roles[0] = r
	return r
}

func (r *roleVerdicts) find(n fwk.NodeInfo) (verdict, bool) {
	if r == nil {
		return verdict{}, false
	}
	known, ok := r.nodes[n.Node().Name]
	return known, ok && known.generation == n.GetGeneration()
}

// keep caches a verdict. keep drops results of nodes that are gone when they become too many.
func (r *roleVerdicts) keep(n fwk.NodeInfo, v verdict, nodes int) {
	if r == nil {
		return
	}
	if len(r.nodes) > 2*nodes {
		clear(r.nodes)
	}
	v.generation = n.GetGeneration()
	r.nodes[n.Node().Name] = v
}
