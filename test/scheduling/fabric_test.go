package scheduling

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
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

// TestFabric: labels put the nodes into three NVLink domains of 18. The scheduler honours what jobs request of these domains.
func TestFabric(t *testing.T) {
	s := newStage(t, cliques*nodesPerClique)
	for i, node := range s.nodes() {
		label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"c%d"}}}`, clique, i/nodesPerClique)
		if _, err := s.client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.StrategicMergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.leader = s.start()
	s.freedByMoves()
	even := s.evenSlices()
	s.replacedOnSpares(even)
	s.intoBrokenDomains()
	s.onWholeNodes()
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

// gang creates pods that take a whole node each. gang returns their names by slot.
func (s *stage) gang(name string, size int, asks map[string]string) []string {
	s.t.Helper()
	var names []string
	for slot := range size {
		p := member(name, slot, size, fmt.Sprintf("%s-%d", name, slot))
		maps.Copy(p.Annotations, asks)
		names = append(names, p.Name)
		s.create(p)
	}
	return names
}

// cliqueOf returns the NVLink domain of each node.
func (s *stage) cliqueOf() map[string]string {
	s.t.Helper()
	of := map[string]string{}
	for _, n := range s.nodes() {
		of[n.Name] = n.Labels[clique]
	}
	return of
}

// freedByMoves: two small gangs are in two domains. The answer names the domain that a move would free, and the pod's new node. The
// scheduler moves no pod.
func (s *stage) freedByMoves() {
	s.t.Helper()
	of, at := s.cliqueOf(), map[string]string{}
	for _, c := range []string{"c0", "c1"} {
		name := "lonely-" + c
		s.ranked(name, 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{clique: c} })
		s.until("the gang to be placed", s.bound(name+"-0"))
		at["gang default/"+name] = s.pods()[name+"-0"].Spec.NodeName
	}
	var got []v1alpha1.FreedDomain
	token := s.token(v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience)
	s.until("the answer to name a domain that would be free", func() bool {
		var fabric v1alpha1.FabricResponse
		code, text := s.acting().fabric(s.t, token)
		if err := json.Unmarshal(text, &fabric); code != http.StatusOK || err != nil {
			s.t.Fatalf("code %d: %s", code, text)
		}
		got = nil
		for _, l := range fabric.Levels {
			if l.Level == "nvlink" && l.Whole == cliques-2 {
				got = l.Freed
			}
		}
		return len(got) > 0
	})
	for _, f := range got {
		if f.Pods != 1 || len(f.Moves) != 1 || len(f.Moves[0].Pods) != 1 {
			s.t.Errorf("freed %+v", f)
			continue
		}
		move := f.Moves[0].Pods[0]
		if from := of[move.From]; at[f.Moves[0].Unit] != move.From || !strings.HasSuffix(f.Domain, from) || of[move.To] == from ||
			of[move.To] == "c2" {
			s.t.Errorf("freed %+v", f)
		}
	}
	for unit, node := range at {
		name := strings.TrimPrefix(unit, "gang default/") + "-0"
		if s.pods()[name].Spec.NodeName != node {
			s.t.Errorf("%s moved", unit)
		}
		s.end(name)
	}
}

// evenSlices: a gang of 24 pods is placed as 12 and 12, in the order of the tree, and each pod has an annotation with its domain.
func (s *stage) evenSlices() []string {
	s.t.Helper()
	names := s.gang(
		"even",
		24,
		map[string]string{v1alpha1.AnnotationSliceLevel: "nvlink", v1alpha1.AnnotationBlockSize: "4", v1alpha1.AnnotationSpares: "2"},
	)
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
			s.t.Errorf("%s has the domain %q", name, at)
		}
	}
	if a, b := of[pods[names[0]].Spec.NodeName], of[pods[names[12]].Spec.NodeName]; a == b {
		s.t.Errorf("both slices are in %s", a)
	}
	return names
}

// replacedOnSpares: two pods lose their nodes at once and are placed together on spares of the same domain.
func (s *stage) replacedOnSpares(names []string) {
	s.t.Helper()
	var again []string
	was := map[string]string{}
	before := s.pods()
	for _, slot := range []int{5, 9} {
		old := before[names[slot]]
		if err := s.client.CoreV1().Pods("default").Delete(s.ctx, old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			s.t.Fatal(err)
		}
		s.until("the pod to be gone", func() bool { return s.pods()[old.Name] == nil })
		blocker := alone("blocker-"+old.Name, func(p *corev1.Pod) { p.Spec.NodeName = old.Spec.NodeName })
		s.create(blocker)
	}
	for _, slot := range []int{5, 9} {
		old := before[names[slot]]
		p := member("even", slot, len(names), old.Name+"-again")
		for _, key := range []string{v1alpha1.AnnotationSliceLevel, v1alpha1.AnnotationBlockSize, v1alpha1.AnnotationSpares} {
			p.Annotations[key] = old.Annotations[key]
		}
		s.create(p)
		again, was[p.Name] = append(again, p.Name), old.Spec.NodeName
	}
	s.until("both pods to be replaced", s.bound(again...))
	of := s.cliqueOf()
	for _, name := range again {
		if at := s.pods()[name].Spec.NodeName; of[at] != of[was[name]] || at == was[name] {
			s.t.Errorf("%s went from %s in %s to %s in %s", name, was[name], of[was[name]], at, of[at])
		}
	}
}

// intoBrokenDomains: a small gang is placed in a domain that is partly used. The unused domain stays free.
func (s *stage) intoBrokenDomains() {
	s.t.Helper()
	of, used := s.cliqueOf(), map[string]bool{}
	for _, p := range s.pods() {
		used[of[p.Spec.NodeName]] = true
	}
	if len(used) != cliques-1 {
		s.t.Fatalf("%d domains are in use", len(used))
	}
	small := s.gang("small", 2, nil)
	s.until("the small gang to be placed", s.bound(small...))
	for _, name := range small {
		if at := of[s.pods()[name].Spec.NodeName]; !used[at] {
			s.t.Errorf("%s broke domain %s", name, at)
		}
	}
}

// onWholeNodes: a gang that requires whole nodes gets no node with another pod. No other pod is placed on its nodes.
func (s *stage) onWholeNodes() {
	s.t.Helper()
	of, whole := s.cliqueOf(), ""
	in := map[string]bool{}
	for _, p := range s.pods() {
		in[of[p.Spec.NodeName]] = true
	}
	for _, n := range s.nodes() {
		if c := of[n.Name]; !in[c] {
			whole = n.Name // the last node found is in the unused domain
		}
	}
	tiny := func(name string) *corev1.Pod {
		p := alone(name, func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} })
		return p
	}
	guest := tiny("guest")
	guest.Spec.NodeName = whole
	s.create(guest)
	asks := map[string]string{v1alpha1.AnnotationWholeNodes: "true", v1alpha1.AnnotationTopologyRequired: "nvlink"}
	all := s.gang("whole-all", nodesPerClique, asks)
	s.until("a gang that needs the guest's node to be refused", s.saying(all[0], "1 used by other pods"))
	s.end(all...)
	most := s.gang("whole", nodesPerClique-1, asks)
	s.until("the others to be placed", s.bound(most...))
	at := map[string]bool{}
	for _, name := range most {
		at[s.pods()[name].Spec.NodeName] = true
	}
	if at[whole] || len(at) != nodesPerClique-1 {
		s.t.Errorf("the gang is on %d nodes, the guest's among them: %v", len(at), at[whole])
	}
	late := tiny("late")
	late.Spec.NodeSelector = map[string]string{clique: of[whole]}
	s.create(late)
	s.until("a pod that wants little to go to the node that is not held whole", s.bound("late"))
	if got := s.pods()["late"].Spec.NodeName; got != whole {
		s.t.Errorf("it is on %s, which a gang holds whole", got)
	}
	s.end(append(most, "late", "guest")...)
}

// refusedWithCounts: a refusal has counts per level. For an unknown level it has the list of levels.
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
