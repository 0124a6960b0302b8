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

// fabric translates nodes and their pods for the tree. Its levels are configured, or recognised from node labels.
type fabric struct {
	configured bool
	levels     []topology.Level
	// tiers are Volcano's HyperNodes, which take the place of labels narrower than a zone where there are any; nil: none
	// are looked for. hyper are those in use, places what they say of nodes, as these were.
	tiers  func() *external.Tiers
	hyper  *external.Tiers
	places map[string]placed
	// byClaim says of an extended resource that pods get it by a claim; nil: none.
	byClaim func(v1.ResourceName) bool
	// attendants are namespaces whose pods are in nobody's way.
	attendants []string
	// keys are the labels that are looked for; carried counts the nodes with each, labels says which a node has,
	// a bit per key.
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

// forgetNode counts a node's labels no more.
func (f *fabric) forgetNode(name string) {
	for i, key := range f.keys {
		f.carried[key] -= int(f.labels[name] >> i & 1)
	}
	delete(f.labels, name)
	delete(f.places, name)
}

// left is what is left of a node.
func (f *fabric) left(n fwk.NodeInfo) topology.Resources {
	left, used := resources(n.GetAllocatable()), resources(n.GetRequested())
	left[string(v1.ResourcePods)] = int64(n.GetAllocatable().GetAllowedPodNumber() - len(n.GetPods()))
	left[claims.Slot] = 1
	for name, v := range used {
		left[name] -= v
	}
	return left
}

// node is what is left of a node, and where it is.
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

// tenant adds what a pod means to others: whether it occupies the node, wants it exclusively, or was promised spares.
// Attendants are no tenants.
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

// place writes a node's domains for people: "zone=a,nvlink=c7".
func (f *fabric) place(node *v1.Node) string {
	var parts []string
	for i, value := range f.domains(node) {
		if l := f.levels[i]; value != "" {
			parts = append(parts, l.Name+"="+value)
		}
	}
	return strings.Join(parts, ",")
}

// placed is where a node is, as it was when that was looked up.
type placed struct {
	node    *v1.Node
	domains []string
}

// hypers are the HyperNodes as they are now.
func (f *fabric) hypers() *external.Tiers {
	if f.tiers == nil {
		return nil
	}
	return f.tiers()
}

// found returns the levels that labels and HyperNodes make. Within a zone HyperNodes decide alone.
func (f *fabric) found() []topology.Level {
	levels := topology.Recognise(f.carried)
	tiers := f.hyper.Levels()
	if len(tiers) == 0 {
		return levels
	}
	levels = slices.DeleteFunc(levels, func(l topology.Level) bool { return l.Name != topology.LevelRegion && l.Name != topology.LevelZone })
	return append(levels, tiers...)
}

// domains names a node's domain in each level.
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
