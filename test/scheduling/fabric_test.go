package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	clique         = "nvidia.com/gpu.clique"
	cliques        = 3
	nodesPerClique = 18
)

// TestFabric: three NVLink domains of 18 nodes, as labels say; what jobs ask of them holds through the scheduler.
func TestFabric(t *testing.T) {
	s := newStage(t, cliques*nodesPerClique)
	for i, node := range s.nodes() {
		label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"c%d"}}}`, clique, i/nodesPerClique)
		if _, err := s.client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.StrategicMergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	even := s.evenSlices()
	s.replacedOnASpare(even)
	s.refusedWithCounts()
}

// nodes lists the nodes by name.
func (s *stage) nodes() []corev1.Node {
	s.t.Helper()
	list, err := s.client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// gang creates pods that take a whole node each, and returns their names by slot.
func (s *stage) gang(name string, size int, asks map[string]string) []string {
	s.t.Helper()
	var names []string
	for slot := range size {
		p := member(name, slot, size, fmt.Sprintf("%s-%d", name, slot))
		for k, v := range asks {
			p.Annotations[k] = v
		}
		names = append(names, p.Name)
		s.create(p)
	}
	return names
}

// cliqueOf is the NVLink domain of each node.
func (s *stage) cliqueOf() map[string]string {
	s.t.Helper()
	of := map[string]string{}
	for _, n := range s.nodes() {
		of[n.Name] = n.Labels[clique]
	}
	return of
}

// evenSlices: 24 pods are 12 and 12, in the order of the tree, and each pod is told where it is.
func (s *stage) evenSlices() []string {
	s.t.Helper()
	names := s.gang("even", 24, map[string]string{v1alpha1.AnnotationSliceLevel: "nvlink", v1alpha1.AnnotationBlockSize: "4", v1alpha1.AnnotationSpares: "2"})
	s.until("24 pods to be placed", s.bound(names...))
	pods, of := s.pods(), s.cliqueOf()
	for slot, name := range names {
		p := pods[name]
		if first := of[pods[names[slot/12*12]].Spec.NodeName]; of[p.Spec.NodeName] != first {
			s.t.Errorf("%s is in %s, its slice in %s", name, of[p.Spec.NodeName], first)
		}
		if slot > 0 && slot%12 > 0 && p.Spec.NodeName <= pods[names[slot-1]].Spec.NodeName {
			s.t.Errorf("%s is on %s, before its neighbour's %s", name, p.Spec.NodeName, pods[names[slot-1]].Spec.NodeName)
		}
		if at := p.Annotations[v1alpha1.AnnotationTopologyDomain]; !strings.HasSuffix(at, "nvlink="+of[p.Spec.NodeName]) {
			s.t.Errorf("%s is told that it is in %q", name, at)
		}
	}
	if a, b := of[pods[names[0]].Spec.NodeName], of[pods[names[12]].Spec.NodeName]; a == b {
		s.t.Errorf("both slices are in %s", a)
	}
	return names
}

// replacedOnASpare: a pod whose node is lost to it goes to a spare of the same domain.
func (s *stage) replacedOnASpare(names []string) {
	s.t.Helper()
	old := s.pods()[names[5]]
	if err := s.client.CoreV1().Pods("default").Delete(s.ctx, old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		s.t.Fatal(err)
	}
	s.until("the pod to be gone", func() bool { return s.pods()[old.Name] == nil })
	blocker := member("", 0, 1, "blocker")
	blocker.Labels, blocker.Annotations, blocker.Spec.NodeName = nil, nil, old.Spec.NodeName
	s.create(blocker)
	again := member("even", 5, len(names), "even-5-again")
	for _, key := range []string{v1alpha1.AnnotationSliceLevel, v1alpha1.AnnotationBlockSize, v1alpha1.AnnotationSpares} {
		again.Annotations[key] = old.Annotations[key]
	}
	s.create(again)
	s.until("the pod to be replaced", s.bound(again.Name))
	of, at := s.cliqueOf(), s.pods()[again.Name].Spec.NodeName
	if of[at] != of[old.Spec.NodeName] || at == old.Spec.NodeName {
		s.t.Errorf("the pod went from %s in %s to %s in %s", old.Spec.NodeName, of[old.Spec.NodeName], at, of[at])
	}
}

// refusedWithCounts: what cannot be is said with counts per level, and an unknown level with those there are.
func (s *stage) refusedWithCounts() {
	s.t.Helper()
	for name, c := range map[string]struct{ level, says string }{
		"close": {"nvlink", "nvlink: 0 of 3 have room for 20"},
		"where": {"shelf", `there is no topology level "shelf": there are`},
	} {
		names := s.gang(name, 20, map[string]string{v1alpha1.AnnotationTopologyRequired: c.level})
		var said string
		s.until("the reason of gang "+name, func() bool {
			for _, cond := range s.pods()[names[0]].Status.Conditions {
				if cond.Type == corev1.PodScheduled {
					said = cond.Message
				}
			}
			return strings.Contains(said, c.says)
		})
		s.t.Log(said)
		if at := slices.IndexFunc(names, func(n string) bool { return s.pods()[n].Spec.NodeName != "" }); at >= 0 {
			s.t.Errorf("%s was placed", names[at])
		}
	}
}
