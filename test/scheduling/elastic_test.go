package scheduling

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
)

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
