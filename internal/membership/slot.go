package membership

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Holders are the members of a job's gang that hold its slots, by slot; nil where none does.
func Holders(job types.UID, members int, pods []corev1.Pod) []*corev1.Pod {
	return holders(members, pods, func(pod *corev1.Pod) (int, bool) {
		slot, ok := GangSlot(pod)
		return slot, ok && MadeFor(pod, job) && !Replaced(pod)
	})
}

// WatchedHolders are the same of a Job that is only watched, whose pods carry no stamp.
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

// holds reports whether pod a, rather than b, holds their slot: the one that has not ended and is not on its way out, else the newer one.
// Where both are there, elastic's State.TakesOver says the same of what the coordinator knows of them.
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

// Ended reports whether all that the pod was made for has ended, well or not.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Gone reports whether the gang lacks the pod: it is being deleted, or has failed. One that succeeded did its part.
func Gone(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed
}
