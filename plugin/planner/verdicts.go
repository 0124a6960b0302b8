package planner

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"holdfast.dev/holdfast/gang"
)

// keptRoles bounds of how many roles it is remembered what filters said.
const keptRoles = 8

// byNodeAlone are filters whose answer follows from the pod and the node that is asked about, and from nothing else.
var byNodeAlone = sets.New(
	names.NodeName,
	names.NodeUnschedulable,
	names.TaintToleration,
	names.NodeAffinity,
	names.NodePorts,
	names.NodeResourcesFit,
	names.NodeDeclaredFeatures,
)

// verdicts remember what filters said of nodes for a role while a node does not change: a gang that is refused again
// and again, and one that is like the last one, cost what changed since. Nothing is remembered of a role where any
// other filter than those of byNodeAlone has a say. They belong to the scheduling cycle.
type verdicts struct {
	roles []*roleVerdicts // the latest first
	// filters are all that there are in the profile.
	filters []string
}

type roleVerdicts struct {
	role  string
	nodes map[string]verdict
}

// verdict is what was said of a node as it was then.
type verdict struct {
	generation int64
	out        bool
	cause      gang.Cause
}

// of returns what is remembered of a role, nil where nothing may be: state and only are what PreFilter left.
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

// keep remembers a verdict. Of nodes that are gone it forgets all now and then.
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
