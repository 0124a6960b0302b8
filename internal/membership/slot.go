package membership

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Holders returns the pods of a job's gang that hold its slots, by slot; nil: no pod holds the slot.
func Holders(job types.UID, members int, pods []corev1.Pod) []*corev1.Pod {
	return holders(members, pods, func(pod *corev1.Pod) (int, bool) {
		slot, ok := GangSlot(pod)
		return slot, ok && MadeFor(pod, job) && !Replaced(pod)
	})
}

// WatchedHolders is Holders for an observed Job, whose pods have no stamp.
func WatchedHolders(members int, pods []corev1.Pod) []*corev1.Pod {
	return holders(members, pods, Index)
}

func holders(members int, pods []corev1.Pod, slotOf func(*corev1.Pod) (int, bool)) []*corev1.Pod {
	holders := make([]*corev1.Pod, members)
	for i := range pods {
		pod := &pods[i]
		slot, ok := slotOf(pod)
		if !ok || slot >= members {
			continue
		}
		if have := holders[slot]; have == nil || holds(pod, have) {
			holders[slot] = pod
		}
	}
	return holders
}

// holds reports whether pod a, rather than b, holds their slot: the pod that has neither ended nor is being deleted, or else the newer one.
// If both run, members.TakesOver decides the same for the coordinator.
func holds(a, b *corev1.Pod) bool {
	if x, y := terminating(a), terminating(b); x != y {
		return y
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.UID > b.UID
}

func terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || Ended(pod) }

// Ended reports whether the pod's containers have ended for good, well or not.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Gone reports whether the gang lacks the pod: it is being deleted, or has failed. A pod that succeeded is not gone.
func Gone(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed
}
