package scheduling

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// ranked creates a gang, modified by change. ranked returns the names of its pods.
func (s *stage) ranked(name string, size int, change func(*corev1.Pod)) []string {
	s.t.Helper()
	var names []string
	for slot := range size {
		p := member(name, slot, size, fmt.Sprintf("%s-%d", name, slot))
		if change != nil {
			change(p)
		}
		names = append(names, p.Name)
		s.create(p)
	}
	return names
}

func (s *stage) end(names ...string) {
	s.t.Helper()
	for _, n := range names {
		if err := s.client.CoreV1().Pods("default").Delete(s.ctx, n, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.until("pods to be gone", func() bool {
		all := s.pods()
		for _, n := range names {
			if all[n] != nil {
				return false
			}
		}
		return true
	})
}

// reserved: room is reserved for a gang that has waited. Only gangs that declare to end in time may use the room.
func reserved(s *stage) {
	hour := int64(3600)
	busy := s.ranked("busy", 1, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &hour })
	s.until("a pod to be placed", s.bound(busy...))
	big := s.ranked("big", nodes, nil)
	s.until("room to be reserved", func() bool {
		return strings.Contains(s.said(big[0]), "is reserved for it, expected to be free at")
	})
	s.t.Log(s.said(big[0]))
	long := s.ranked("long", 1, nil)
	s.until("the one without a run time to be refused", func() bool { return s.said(long[0]) != "" })
	short := s.ranked("short", 1, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationRunTime] = "30m" })
	s.until("the one that ends in time to be placed", s.bound(short...))
	if s.pods()[long[0]].Spec.NodeName != "" {
		s.t.Error("a gang without a run time went into reserved room")
	}
	s.end(append(busy, short...)...)
	s.until("the large gang to be placed", s.bound(big...))
	if s.pods()[long[0]].Spec.NodeName != "" {
		s.t.Error("the small gang was first")
	}
	s.clear()
}
