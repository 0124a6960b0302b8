package membership

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// PodsBySlot are the pods of a Job that hold its slots. Of two pods in one slot the one that is not on its way out counts, else
// the newer one.
func PodsBySlot(job *batchv1.Job, members int32, pods []corev1.Pod) map[int32]*corev1.Pod {
	bySlot := map[int32]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		owner := OwningJob(pod)
		slot, ok := GangSlot(pod)
		if owner == nil || owner.UID != job.UID || !ok || slot >= int(members) || Replaced(pod) {
			continue
		}
		if have := bySlot[int32(slot)]; have == nil || better(pod, have) {
			bySlot[int32(slot)] = pod
		}
	}
	return bySlot
}

// better says whether pod a, rather than b, is the one that holds their slot.
func better(a, b *corev1.Pod) bool {
	if Gone(a) != Gone(b) {
		return Gone(b)
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// Gone says whether the pod holds its slot no more.
func Gone(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed
}
