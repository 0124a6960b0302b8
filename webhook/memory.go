package webhook

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/settings"
)

// agentBytes is what the agent, what reaches storage for it, and PID 1 may use beside the ranks (TestEightRanksFit).
const agentBytes = 64 << 20

// volumeSlack is room in the memory volume beside the arenas.
const volumeSlack = 1 << 20

// demand is the memory that one pod needs beside what its ranks use by themselves.
type demand struct {
	// Volume is the size of the memory volume: one arena per rank. 0: state in memory is off.
	Volume int64
	// Standbys is for standby processes: for one that imports, whose forks share its memory until they train. If the script needs
	// one per rank, which is known only at run time, the agent starts as many as memory allows and reports that.
	Standbys int64
	// Shm is the size of the volume at /dev/shm; 0: none is added.
	Shm int64
}

func (t *training) demand(s settings.Settings) demand {
	d := demand{Shm: t.sharedMemory(s)}
	if s.StateBytes > 0 {
		d.Volume = int64(t.ranks)*arenaBytes(s) + volumeSlack
	}
	if s.Standbys {
		d.Standbys = s.StandbyBytes
	}
	return d
}

func (d demand) total() int64 { return d.Volume + d.Standbys + d.Shm + agentBytes }

// addMemory adds n bytes to each memory request and limit that the user set, on the container and on
// the pod as a whole, and reports whether there was any. Requests and limits that were equal stay equal.
func addMemory(c *corev1.Container, spec *corev1.PodSpec, n int64) bool {
	added := false
	lists := []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits}
	if spec.Resources != nil {
		lists = append(lists, spec.Resources.Requests, spec.Resources.Limits)
	}
	for _, list := range lists {
		if q, ok := list[corev1.ResourceMemory]; ok && !q.IsZero() {
			q.Add(*resource.NewQuantity(n, resource.BinarySI))
			list[corev1.ResourceMemory] = q
			added = true
		}
	}
	return added
}

// memorySet returns the largest memory value that the user set, 0 if none.
func memorySet(c *corev1.Container, spec *corev1.PodSpec) int64 {
	var n int64
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		n = max(n, list.Memory().Value())
	}
	if spec.Resources != nil {
		n = max(n, spec.Resources.Requests.Memory().Value(), spec.Resources.Limits.Memory().Value())
	}
	return n
}

// notReserved is the note for a pod whose memory is neither requested nor limited.
func notReserved(container string, d demand) string {
	shm := ""
	if d.Shm > 0 {
		shm = " and for " + mebibytes(d.Shm) + " at /dev/shm"
	}
	return fmt.Sprintf("container %s sets neither a memory request nor a limit: nothing was added for the %s that holdfast may use%s; set them to reserve it", container, mebibytes(d.total()-d.Shm), shm)
}

// memoryWarnings returns what the job will need, if that is more than it requests or is not reserved.
func (t *training) memoryWarnings(s settings.Settings) (warnings []string) {
	d := t.demand(s)
	set := memorySet(t.container(), t.spec)
	if t.ranksLater {
		warnings = append(warnings, fmt.Sprintf("%s: the number of ranks is unknown until the pod runs: memory is counted for %d, the number of devices; write the number of ranks into annotation %s",
			t.path.Child("command"), t.ranks, v1alpha1.AnnotationRanks))
	}
	switch {
	case set == 0:
		return append(warnings, notReserved(t.container().Name, d))
	case d.total() > set:
		text := fmt.Sprintf("holdfast adds %s of memory to the %s of each pod: %s %s for state in memory and %s for standbys",
			mebibytes(d.total()), mebibytes(set), counted(t.ranks), mebibytes(d.Volume), mebibytes(d.Standbys))
		if d.Shm > 0 {
			text += fmt.Sprintf(", and /dev/shm has %s (%s)", mebibytes(d.Shm), v1alpha1.AnnotationShmSize)
		}
		return append(warnings, text)
	}
	return warnings
}

// queueWarnings returns what Kueue, which counts the object's templates, does not count.
func (o *subject) queueWarnings() []string {
	queue := settings.Queue(o.obj)
	each, all := int64(0), int64(0)
	for _, r := range o.roles {
		if memorySet(r.t.container(), r.t.spec) > 0 {
			added := r.t.demand(r.s).total()
			each, all = max(each, added), all+added*int64(r.Pods())
		}
	}
	if queue == "" || all == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: Kueue counts the pod template, and holdfast adds %s of memory to each pod (%s in all) when the pods are created: subtract this amount from the memory quota of queue %s",
		metadataLabels.Key(settings.QueueLabel), mebibytes(each), mebibytes(all), queue)}
}

func counted(ranks int32) string {
	if ranks == 1 {
		return "1 rank needs"
	}
	return fmt.Sprintf("%d ranks need", ranks)
}

func mebibytes(n int64) string { return quantity((n + (1 << 20) - 1) >> 20 << 20) }

func quantity(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// sharesBudget reports whether the pod as a whole has requests or limits.
func sharesBudget(spec *corev1.PodSpec) bool {
	return spec.Resources != nil && len(spec.Resources.Requests)+len(spec.Resources.Limits) > 0
}

// qosClass is what the kubelet will call the pod; init containers count.
func qosClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	kinds := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	if sharesBudget(spec) {
		return qosOf([]corev1.ResourceRequirements{*spec.Resources}, kinds)
	}
	var all []corev1.ResourceRequirements
	for _, c := range spec.InitContainers {
		all = append(all, c.Resources)
	}
	for _, c := range spec.Containers {
		all = append(all, c.Resources)
	}
	return qosOf(all, kinds)
}

func qosOf(all []corev1.ResourceRequirements, kinds []corev1.ResourceName) corev1.PodQOSClass {
	any, guaranteed := false, true
	for _, r := range all {
		for _, kind := range kinds {
			request, asked := r.Requests[kind]
			limit := r.Limits[kind]
			if !asked {
				request = limit
			}
			if !request.IsZero() || !limit.IsZero() {
				any = true
			}
			if limit.IsZero() || request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// arenaBytes is the size of one rank's arena.
func arenaBytes(s settings.Settings) int64 {
	return int64(format.FileSize(uint64(s.StateBytes), cmp.Or(uint32(s.Slots), format.Slots)))
}
