package scheduling

import (
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// besideElastic: two elastic gangs have all nodes. They lose the pods on the nodes that are reserved for a gang which needs all its pods,
// one after the other, and get others. That gang gets these nodes, though none alone is enough for it: no elastic gang takes them in
// between. Once the gang has ended, the elastic ones get its nodes. No pod is preempted.
func besideElastic(s *stage) {
	const size, needed = nodes / 2, 3
	elastic := func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangMin] = "1" }
	s.until("both to have all nodes", s.bound(append(s.ranked("one", size, elastic), s.ranked("two", size, elastic)...)...))
	on := map[string]*corev1.Pod{}
	for _, p := range s.pods() {
		on[p.Spec.NodeName] = p
	}
	s.apply("{apiVersion: holdfast.dev/v1alpha1, kind: Gang, metadata: {name: rigid, namespace: default}, spec: {members: 3, jobRef: {apiVersion: batch/v1, kind: Job, name: rigid, uid: none}}}")
	rigid, evictions := s.ranked("rigid", needed, nil), s.evictions()
	var reserved []string
	s.until("nodes to be reserved for it", func() bool {
		names, err := s.cluster.Kubectl(s.ctx, "get", "gangs.holdfast.dev", "rigid", "-o", "jsonpath={.status.placement.held.nodes[*]}")
		reserved = strings.Fields(names)
		return err == nil && len(reserved) == needed
	})
	// lose ends the pod of a node, and creates the one that its Job would.
	lose := func(node string) (name string) {
		old := on[node]
		delete(on, node)
		s.end(old.Name)
		slot, _ := strconv.Atoi(old.Annotations[v1alpha1.AnnotationGangSlot])
		p := member(old.Labels[v1alpha1.LabelGang], slot, size, old.Name+"-again")
		elastic(p)
		s.create(p)
		return p.Name
	}
	var again []string
	for i, node := range reserved {
		name := lose(node)
		again = append(again, name)
		if i+1 < needed {
			s.until("the pod that is created again to be refused", func() bool { return s.said(name) != "" })
		}
	}
	s.until("the gang that waited to be placed", s.bound(rigid...))
	s.until("the last pod to be refused", func() bool { return s.said(again[needed-1]) != "" })
	now := s.pods()
	for _, name := range again {
		if p := now[name]; p.Spec.NodeName != "" || p.Status.NominatedNodeName != "" || strings.Contains(s.said(name), "reserved for it") {
			s.t.Errorf("%s on %q, nominated %q: %s", name, p.Spec.NodeName, p.Status.NominatedNodeName, s.said(name))
		}
	}
	s.end(rigid...)
	s.until("all elastic pods to have nodes again", s.bound(again...))
	now = s.pods()
	for _, was := range on {
		if p := now[was.Name]; p == nil || p.UID != was.UID {
			s.t.Errorf("%s is gone", was.Name)
		}
	}
	if n := s.evictions() - evictions; n != 0 {
		s.t.Errorf("%d pods were preempted", n)
	}
	if out, err := s.cluster.Kubectl(s.ctx, "delete", "gangs.holdfast.dev", "rigid"); err != nil {
		s.t.Errorf("%v: %s", err, out)
	}
	s.clear()
}

// surplusOfGroup: pods of a PodGroup of another project beyond its minimum block no pod behind them, whatever their priority. They preempt
// no pod, and no room is reserved for them. They take nodes that become free.
func surplusOfGroup(s *stage) {
	s.priorities()
	s.applyFile(filepath.Join(source, "test/peers/podgroups.yaml"))
	s.apply("{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: wide, namespace: default}, spec: {minMember: 2}}")
	in := func(p *corev1.Pod) { p.Labels[coscheduling.PodGroupLabel], p.Spec.PriorityClassName = "wide", high }
	wide, low := s.grow("wide", 0, 2, in), s.ranked("low", nodes-3, nil)
	s.until("the minimum and another gang to be placed", s.bound(append(wide, low...)...))

	large := s.grow("wide", 2, 3, func(p *corev1.Pod) {
		in(p)
		p.Spec.Containers[0].Resources.Limits[gpu] = resource.MustParse("9")
	})
	s.until("a pod that fits no node to be refused", func() bool { return s.said(large[0]) != "" })
	late := s.ranked("late", 1, nil)
	s.until("a younger gang to be placed", s.bound(late...))

	before, evictions := s.pods(), s.evictions()
	more := s.grow("wide", 3, 4, in)
	s.until("one that would fit a node to be refused", func() bool { return s.said(more[0]) != "" })
	waits := s.ranked("waits", 2, nil)
	s.until("room to be reserved for a gang behind it", s.saying(waits[0], "is reserved for it"))
	now := s.pods()
	for _, name := range append(large, more...) {
		if now[name].Spec.NodeName != "" || now[name].Status.NominatedNodeName != "" || strings.Contains(s.said(name), "reserved for it") {
			s.t.Errorf("%s on %q, nominated %q: %s", name, now[name].Spec.NodeName, now[name].Status.NominatedNodeName, s.said(name))
		}
	}
	for _, name := range append(low, late...) {
		if now[name] == nil || now[name].UID != before[name].UID {
			s.t.Errorf("%s is gone", name)
		}
	}
	if n := s.evictions() - evictions; n != 0 {
		s.t.Errorf("%d pods were preempted for surplus", n)
	}
	s.end(low...)
	s.until("both to be placed", s.bound(append(waits, more...)...))
	s.clear()
}
