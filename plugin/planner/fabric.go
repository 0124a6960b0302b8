package planner

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/topology"
)

// fabric translates nodes and their pods for the tree. Its levels are configured, or derived from node labels.
type fabric struct {
	configured bool
	levels     []topology.Level
	// tiers are Volcano's HyperNodes, which replace labels narrower than a zone if there are any; nil: unused. hyper are those in use,
	// places caches their domains of a node.
	tiers  func() *external.Tiers
	hyper  *external.Tiers
	places map[string]placed
	// byClaim reports whether pods get an extended resource by a claim; nil: never.
	byClaim func(v1.ResourceName) bool
	// attendants are namespaces whose pods do not count as using a node.
	attendants []string
	// keys are the labels that may be levels; carried counts the nodes with each, labels is a node's set of them, one bit per key.
	keys    []string
	carried map[string]int
	labels  map[string]uint64
}

func newFabric(args schedulingv1alpha1.HoldfastArgs) fabric {
	f := fabric{configured: len(args.TopologyLevels) > 0, keys: topology.KnownKeys(), attendants: args.AttendantNamespaces}
	for _, l := range args.TopologyLevels {
		f.levels = append(f.levels, topology.Level{Name: l.Name, Key: l.NodeLabel})
	}
	f.forget()
	return f
}

func (f *fabric) forget() {
	f.carried, f.labels, f.places = map[string]int{}, map[string]uint64{}, map[string]placed{}
}

// countLabels counts a node's labels.
func (f *fabric) countLabels(node *v1.Node) {
	if f.configured {
		return
	}
	var has uint64
	for i, key := range f.keys {
		if node.Labels[key] != "" {
			has |= 1 << i
		}
	}
	had := f.labels[node.Name]
	if has == had {
		return
	}
	f.labels[node.Name] = has
	for i, key := range f.keys {
		f.carried[key] += int(has>>i&1) - int(had>>i&1)
	}
}

// changed reports whether the observed nodes have other levels than those in use.
func (f *fabric) changed() bool {
	return !f.configured && (f.hyper != f.hypers() || !slices.Equal(f.found(), f.levels))
}

func (f *fabric) recognise() {
	if !f.configured {
		f.hyper = f.hypers()
		f.levels = f.found()
	}
}

// forgetNode removes a node's labels from the counts.
func (f *fabric) forgetNode(name string) {
	for i, key := range f.keys {
		f.carried[key] -= int(f.labels[name] >> i & 1)
	}
	delete(f.labels, name)
	delete(f.places, name)
}

// left returns the free resources of a node.
func (f *fabric) left(n fwk.NodeInfo) topology.Resources {
	left, used := resources(n.GetAllocatable()), resources(n.GetRequested())
	left[string(v1.ResourcePods)] = int64(n.GetAllocatable().GetAllowedPodNumber() - len(n.GetPods()))
	left[claims.Slot] = 1
	for name, v := range used {
		left[name] -= v
	}
	return left
}

// node returns the free resources of a node, its domains and its tenants.
func (f *fabric) node(n fwk.NodeInfo) topology.Node {
	left, used := resources(n.GetAllocatable()), resources(n.GetRequested())
	left[string(v1.ResourcePods)] = int64(n.GetAllocatable().GetAllowedPodNumber())
	left[claims.Slot] = 1
	used[string(v1.ResourcePods)] = int64(len(n.GetPods()))
	devices, taken := false, false
	for name := range left {
		devices = devices || claims.IsExtended(name)
	}
	for name, v := range used {
		left[name] -= v
		taken = taken || (v > 0 && claims.IsExtended(name))
	}
	out := topology.Node{Name: n.Node().Name, Free: left}
	out.Domain = f.domains(n.Node())
	theirs := false
	for _, info := range n.GetPods() {
		if f.tenant(&out, info.GetPod()) && taken && !theirs {
			theirs = takesDevices(info)
		}
	}
	out.Used = theirs || (!devices && out.Tenants > 0)
	return out
}

func takesDevices(info fwk.PodInfo) bool {
	for name, v := range info.CalculateResource().Resource.GetScalarResources() {
		if v > 0 && claims.IsExtended(string(name)) {
			return true
		}
	}
	return false
}

// usage returns what a pod that is on its way to a node will use there.
func (f *fabric) usage(info fwk.PodInfo) topology.Usage {
	var n topology.Node
	tenant := f.tenant(&n, info.GetPod())
	return topology.Usage{Resources: f.asked(info), Tenant: tenant, Exclusive: n.Exclusive, Spares: n.Spares, SparesAt: n.SparesAt}
}

// tenant adds to the node what a pod prevents there: that it uses the node, uses it exclusively, or was promised spares. Attendants count
// for nothing.
func (f *fabric) tenant(n *topology.Node, pod *v1.Pod) bool {
	if f.attendant(pod) {
		return false
	}
	n.Tenants++
	if _, member := membership.GroupOf(pod); !member {
		return true
	}
	asks, err := settings.GangTopology(pod)
	if err != nil {
		return true
	}
	n.Exclusive = n.Exclusive || asks.Whole
	if asks.Spares > n.Spares {
		n.Spares, n.SparesAt = asks.Spares, asks.SliceLevel
		if last := len(f.levels) - 1; n.SparesAt == "" && last >= 0 {
			n.SparesAt = f.levels[last].Name
		}
	}
	return true
}

// attendant reports whether a pod belongs to its node rather than to a job, so that it does not count as using the
// node.
func (f *fabric) attendant(pod *v1.Pod) bool {
	if owner := metav1.GetControllerOf(pod); owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node") {
		return true
	}
	return slices.Contains(f.attendants, pod.Namespace)
}

// place formats a node's domains for users: "zone=a,nvlink=c7".
func (f *fabric) place(node *v1.Node) string {
	var parts []string
	for i, value := range f.domains(node) {
		if l := f.levels[i]; value != "" {
			parts = append(parts, l.Name+"="+value)
		}
	}
	return strings.Join(parts, ",")
}

// placed is a node's place in the HyperNodes, and the Node for which it was computed.
type placed struct {
	node    *v1.Node
	domains []string
}

// hypers returns the present HyperNodes.
func (f *fabric) hypers() *external.Tiers {
	if f.tiers == nil {
		return nil
	}
	return f.tiers()
}

// found returns the levels of labels and HyperNodes. Within a zone HyperNodes alone count.
func (f *fabric) found() []topology.Level {
	levels := topology.Recognise(f.carried)
	tiers := f.hyper.Levels()
	if len(tiers) == 0 {
		return levels
	}
	levels = slices.DeleteFunc(levels, func(l topology.Level) bool { return l.Name != topology.LevelRegion && l.Name != topology.LevelZone })
	return append(levels, tiers...)
}

// domains returns a node's domain in each level.
func (f *fabric) domains(node *v1.Node) []string {
	if have, ok := f.places[node.Name]; ok && have.node == node {
		return have.domains
	}
	domains := make([]string, len(f.levels))
	hyper := f.hyper.Place(node)
	for i, l := range f.levels {
		if from := len(f.levels) - len(hyper); i >= from && !f.configured {
			domains[i] = hyper[i-from]
		} else {
			domains[i] = node.Labels[l.Key]
		}
	}
	if f.hyper != nil {
		f.places[node.Name] = placed{node, domains}
	}
	return domains
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

// asked returns what a pod takes from a node, with one pod of the node's pod count.
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

// claimed replaces what a pod gets by claims (extended resources of a device class, and its claims) by claims.Slot.
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
