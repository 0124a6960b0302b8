package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// raced: another scheduler places pods on the same nodes at the same time. Neither scheduler knows the other's plans, so both may choose
// the same node. The kubelet then refuses one pod, and its controller re-creates the pod. At last all gangs are complete and no node is
// overcommitted.
func raced(s *stage) {
	const gangs, singles, rounds = 2, 4, 3
	s.plain(gangs*squad + singles + 2)
	met := 0
	for round := 0; round < rounds || met == 0; round++ {
		if round == 10*rounds {
			s.t.Fatalf("in %d rounds no two met on a node: this shows nothing", round)
		}
		k := &kubelet{s: s, admitted: map[string]*corev1.Pod{}, again: map[string]*corev1.Pod{}}
		var all sync.WaitGroup
		var members []string
		for g := range gangs {
			for slot := range squad {
				p := member(fmt.Sprintf("r%d-%d", round, g), slot, squad, fmt.Sprintf("r%d-%d-%d", round, g, slot))
				onPlain(p)
				members, k.again[p.Name] = append(members, p.Name), p
			}
		}
		for i := range singles {
			p := alone(fmt.Sprintf("single-%d-%d", round, i), onPlain)
			p.Spec.SchedulerName = corev1.DefaultSchedulerName
			k.again[p.Name] = p
		}
		for _, p := range k.again {
			all.Go(func() { s.create(p) })
		}
		all.Wait()
		s.until("all to run", func() bool { return k.step() })
		met += k.refused
		on := map[string]string{}
		for name, p := range s.pods() {
			if other := on[p.Spec.NodeName]; other != "" {
				s.t.Errorf("%s and %s are on %s", other, name, p.Spec.NodeName)
			}
			on[p.Spec.NodeName] = name
		}
		if n := s.onNodes(fmt.Sprintf("r%d-", round)); n != len(members) {
			s.t.Errorf("%d of %d members are on nodes", n, len(members))
		}
		s.clear()
	}
	s.t.Logf("%d times two met on a node", met)
}

// kubelet does what kubelets do with pods on plain nodes, and what controllers do with refused pods.
type kubelet struct {
	s *stage
	// admitted has the pod of each node; again has the pods as they were created.
	admitted map[string]*corev1.Pod
	again    map[string]*corev1.Pod
	refused  int
}

// step handles all pods once; it reports whether all exist and run.
func (k *kubelet) step() bool {
	k.s.t.Helper()
	pods := k.s.pods()
	var names []string
	for name, p := range pods {
		if p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return strings.Compare(pods[a].ResourceVersion+a, pods[b].ResourceVersion+b)
	})
	for _, name := range names {
		p := pods[name]
		if who := k.admitted[p.Spec.NodeName]; who == nil || pods[who.Name] == nil || pods[who.Name].UID != who.UID {
			k.admitted[p.Spec.NodeName] = p
			at := metav1.Now()
			k.s.report(name, corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at})
			continue
		}
		k.refused++
		k.s.report(name, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOf" + gpu})
		err := k.s.client.CoreV1().Pods("default").Delete(k.s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			k.s.t.Fatal(err)
		}
	}
	there := 0
	for name, p := range k.again {
		if pods[name] == nil {
			if err := k.s.remake(p); err != nil {
				k.s.t.Fatal(err)
			}
		} else if pods[name].Status.Phase == corev1.PodRunning {
			there++
		}
	}
	return there == len(k.again)
}

// remake creates a pod again, unless it already exists.
func (s *stage) remake(p *corev1.Pod) error {
	_, err := s.client.CoreV1().Pods(p.Namespace).Create(s.ctx, p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
