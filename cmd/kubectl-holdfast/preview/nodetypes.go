package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// State is what holding state in memory takes of a node for one pod.
type State struct {
	// Slots copies of Bytes for each of Ranks are Total.
	Slots int32 `json:"slots"`
	Bytes int64 `json:"bytes"`
	Ranks int32 `json:"ranks"`
	Total int64 `json:"total"`
	// Needed is the memory that the pod asks for in all; where it asks for none, the Total.
	Needed int64 `json:"needed"`
	// NodeTypes are the nodes that the pod's selector and affinity admit, by their shape; Unread says why they are not known.
	NodeTypes []NodeType `json:"nodeTypes,omitempty"`
	Unread    string     `json:"unread,omitempty"`
	// Otherwise is what the other number of slots would take.
	Otherwise Otherwise `json:"otherwise"`
}

// Otherwise is what a pod would need with another number of slots, and on how many of the node types one would have room.
type Otherwise struct {
	Slots  int32 `json:"slots"`
	Needed int64 `json:"needed"`
	Fits   int   `json:"fits"`
}

// NodeType is nodes of one shape: what they have for pods, not what is free now.
type NodeType struct {
	// Name is the instance type; empty where nodes have none.
	Name  string `json:"name,omitempty"`
	Nodes int32  `json:"nodes"`
	// Memory is the lowest memory of one of them, Devices the number of requested devices on each.
	Memory  int64  `json:"memory"`
	Devices string `json:"devices,omitempty"`
	// Pods is how many such pods fit on one by memory and devices; Why is what is too little where none does.
	Pods int64  `json:"pods"`
	Why  string `json:"why,omitempty"`
}

// state counts what is held for a pod, against what nodes have.
func (p Preview) state(a Answers) *State {
	if p.Injection == nil || p.Injection.StateBytes == 0 {
		return nil
	}
	s := &State{Slots: cmp.Or(p.Injection.Slots, format.Slots), Bytes: p.Injection.StateBytes, Ranks: p.Injection.Ranks, Unread: a.Unread}
	s.Total = int64(s.Slots) * s.Bytes * int64(s.Ranks)
	asked := resource.PodRequests(a.Pod, resource.PodResourcesOptions{})
	for name, n := range resource.PodLimits(a.Pod, resource.PodResourcesOptions{}) {
		if _, ok := asked[name]; !ok {
			asked[name] = n
		}
	}
	s.Needed = cmp.Or(asked.Memory().Value(), s.Total)
	s.NodeTypes = shapes(a, asked, s.Needed)
	other := Otherwise{Slots: format.Slots + format.MinSlots - s.Slots}
	other.Needed = s.Needed + int64(other.Slots-s.Slots)*s.Bytes*int64(s.Ranks)
	other.Fits = fits(shapes(a, asked, other.Needed))
	s.Otherwise = other
	return s
}

// shapes are the nodes that the pod's selector and affinity admit, by what they have for pods that need so much memory.
func shapes(a Answers, asked corev1.ResourceList, needed int64) (types []NodeType) {
	affinity := nodeaffinity.GetRequiredNodeAffinity(a.Pod)
	shapes := map[string]*NodeType{}
	for i := range a.Nodes {
		node := &a.Nodes[i]
		if ok, err := affinity.Match(node); !ok || err != nil {
			continue
		}
		t := typeOf(node, asked, needed)
		key := fmt.Sprintf("%q %q", t.Name, t.Devices)
		if t.Name == "" {
			key += fmt.Sprint((t.Memory + 1<<29) >> 30) // machines that are alike differ by some MiB
		}
		if known := shapes[key]; known == nil {
			shapes[key] = &t
		} else {
			known.Nodes++
			if t.Memory < known.Memory {
				known.Memory, known.Pods, known.Why = t.Memory, t.Pods, t.Why
			}
		}
	}
	for _, t := range shapes {
		types = append(types, *t)
	}
	slices.SortFunc(types, func(a, b NodeType) int {
		return cmp.Or(
			cmp.Compare(b.Pods, a.Pods),
			cmp.Compare(b.Memory, a.Memory),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Devices, b.Devices),
		)
	})
	return types
}

// typeOf is the shape of one node, and how many such pods it has room for when it is empty.
func typeOf(node *corev1.Node, asked corev1.ResourceList, needed int64) NodeType {
	t := NodeType{Name: node.Labels[corev1.LabelInstanceTypeStable], Nodes: 1, Memory: node.Status.Allocatable.Memory().Value()}
	var devices, little []string
	t.Pods = t.Memory / max(1, needed)
	if t.Pods == 0 {
		little = append(little, "memory")
	}
	for _, name := range extended(asked) {
		have, want := node.Status.Allocatable[name], asked[name]
		if !have.IsZero() {
			devices = append(devices, have.String()+" "+string(name))
		}
		n := have.Value() / max(1, want.Value())
		if t.Pods = min(t.Pods, n); n == 0 {
			little = append(little, string(name))
		}
	}
	if len(little) > 0 {
		t.Why = "too little " + strings.Join(little, ", ")
	}
	t.Devices = strings.Join(devices, ", ")
	return t
}

// extended are the devices that a pod asks for, by name.
func extended(asked corev1.ResourceList) (names []corev1.ResourceName) {
	for name, n := range asked {
		if strings.Contains(string(name), "/") && !n.IsZero() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// fits counts the shapes on which at least one pod has room.
func fits(types []NodeType) (n int) {
	for _, t := range types {
		if t.Pods > 0 {
			n++
		}
	}
	return n
}

// text says what state takes, and which nodes have it.
func (s *State) text(w *page.Page) {
	w.Linef("  state in memory: %d × %s × %s = %s", s.Slots, page.Bytes(s.Bytes), page.Count(s.Ranks, "rank", "ranks"), page.Bytes(s.Total))
	if s.Unread != "" {
		w.Wrapf("    ", "which nodes have it is unknown: %s", s.Unread)
	}
	if len(s.NodeTypes) == 0 {
		return
	}
	w.Linef("    with it a pod needs %s, which fits on %d of %s", page.Bytes(s.Needed), fits(s.NodeTypes), page.Count(len(s.NodeTypes), "node type", "node types"))
	w.Linef("    with %s: \"%d\" it would need %s, which fits on %d", v1alpha1.AnnotationSlots, s.Otherwise.Slots, page.Bytes(s.Otherwise.Needed), s.Otherwise.Fits)
	var rows [][]string
	for i, t := range s.NodeTypes {
		if i == maxTypes {
			break
		}
		rows = append(
			rows,
			[]string{
				page.Cut(page.Dash(t.Name), 40),
				fmt.Sprint(t.Nodes),
				page.Bytes(t.Memory),
				fmt.Sprint(t.Pods),
				page.Dash(t.Devices),
				page.Dash(t.Why),
			},
		)
	}
	w.Table("    ", []string{"TYPE", "NODES", "MEMORY", "PODS-PER-NODE", "DEVICES", "WHY"}, rows, false)
	if more := len(s.NodeTypes) - len(rows); more > 0 {
		w.Linef("    %d more node types: see -o json", more)
	}
}

// maxTypes is how many shapes people are shown.
const maxTypes = 20
