package scheduling

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// classLabel is the label in rules about other pods.
const classLabel = "example.com/class"

// ofClass makes a pod take a quarter of a plain node, with anti-affinity to the classes in avoids.
func ofClass(class string, then func(*corev1.Pod), avoids ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		then(p)
		p.Labels[classLabel] = class
		p.Spec.Containers[0].Resources.Limits[gpu] = resource.MustParse("2")
		away := &corev1.PodAntiAffinity{}
		for _, other := range avoids {
			away.RequiredDuringSchedulingIgnoredDuringExecution = append(away.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{classLabel: other}},
			})
		}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: away}
	}
}

// keptAway: both nodes have room for a gang of higher priority, but a rule of that gang, or of a gang of lower priority on the nodes,
// excludes it. The gang of lower priority is preempted. Its new pods, or a third gang with such a rule, are not placed before the gang of
// higher priority.
func keptAway(s *stage) {
	s.priorities()
	s.plain(2)
	for _, c := range []struct{ cheap, dear, late func(*corev1.Pod) }{
		{ofClass("low", slowly, "low"), ofClass("high", urgently, "high", "low", "other"), ofClass("other", onPlain)},
		{ofClass("low", slowly, "low", "high"), ofClass("high", urgently, "high"), ofClass("other", onPlain, "high")},
	} {
		cheap := s.ranked("cheap", 2, c.cheap)
		s.running(cheap...)
		evictions := s.evictions()
		dear := s.ranked("dear", 2, c.dear)
		s.until("the gang that keeps the other away to be evicted", func() bool { return len(s.leaving()) == 2 })
		s.until("it to be said", s.saying(dear[0], "preempting gang default/cheap (2 pods)"))
		s.t.Log(s.said(dear[0]))
		var again []string
		for slot, name := range cheap { // as a Job's controller creates them, while the old ones end
			p := member("cheap", slot, 2, name+"-again")
			c.cheap(p)
			again = append(again, p.Name)
			s.create(p)
		}
		late := s.ranked("late", 2, c.late)
		s.until("the third gang to be kept out", s.saying(late[0], "pods are preempted for gang default/dear, which would not fit beside this"))
		s.end(cheap...)
		s.until("the gang to be placed", s.bound(dear...))
		for _, first := range []string{again[0], late[0]} {
			s.until("the others to be refused", s.saying(first, "refused by InterPodAffinity"))
		}
		if n := s.evictions() - evictions; n != len(cheap) || s.onNodes("cheap")+s.onNodes("late") > 0 {
			s.t.Errorf("%d evictions of a gang of %d, and the pods are on: %s", n, len(cheap), s.seen())
		}
		s.clear()
	}
}

// stranded: a gang lost a node to a drain, and its new pod waits. A younger gang and a pod of no gang wait too. They must not get the node
// when it is uncordoned, whichever queue of the scheduler holds each pod, and also after another replica took over. They are placed once
// there is room beside the gang.
func stranded(s *stage) {
	s.plain(3)
	whole := func(p *corev1.Pod) { onPlain(p); p.Spec.Tolerations = nil }
	preview := s.previewer(whole)
	for round := range 4 {
		s.create(alone("filler", whole))
		long := s.ranked("long", 2, whole)
		s.running(append(long, "filler")...)
		at := s.pods()[long[1]].Spec.NodeName
		s.cordon(at, true)
		// Nodes and pods reach the scheduler by two watches: it may see the new pod first.
		s.until("the scheduler to see the cordon", func() bool { return strings.Contains(preview(1).Message, "1 cordoned") })
		s.end(long[1])
		lost := member("long", 1, 2, "long-1-again")
		whole(lost)
		s.create(lost)
		s.until("the new pod to be refused", s.saying(lost.Name, "1 pod wanted (1 of 2 are on nodes), 0 fit"))
		fresh := s.ranked("fresh", 1, whole)
		s.create(alone("lone", whole))
		s.until("the younger gang to be refused", s.saying(fresh[0], "1 pod wanted, 0 fit"))
		s.until("the single pod to be refused", s.saying("lone", "nodes are available"))
		if round == 3 {
			s.leader.kill()
			s.leader, s.follower = s.follower, s.start()
			s.acting()
		}
		began := time.Now()
		s.cordon(at, false)
		s.until("the gang that lost a pod to be whole", s.bound(lost.Name))
		s.t.Logf("round %d: whole again after %v", round, time.Since(began))
		if s.onNodes("fresh")+s.onNodes("lone") > 0 {
			s.t.Errorf("round %d: a younger one was first", round)
		}
		s.end("filler")
		s.until("one of the others to be placed", func() bool { return s.onNodes("fresh")+s.onNodes("lone") == 1 })
		s.end(long[0], lost.Name)
		s.until("both to be placed", s.bound(fresh[0], "lone"))
		s.clear()
	}
}

// cordon cordons a node, or uncordons it.
func (s *stage) cordon(node string, on bool) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	if _, err := s.client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}
