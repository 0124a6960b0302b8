package webhook

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/internal/settings"
)

// shmPath is where the processes of a container share memory: data loaders and NCCL. Container runtimes mount 64 MiB there.
const shmPath = "/dev/shm"

// shmVariable states to the agent that no other container shares its /dev/shm.
const shmVariable = "HOLDFAST_SHM"

// Without the annotation /dev/shm gets this share of the container's memory, within these bounds. If no memory is set, nothing is
// reserved, and it may use the upper bound.
const (
	shmShare = 16
	leastShm = 64 << 20
	mostShm  = 8 << 30
)

// sharedMemory is the size of the volume at /dev/shm; 0: none is mounted.
func (t *training) sharedMemory(s settings.Settings) int64 {
	switch set := memorySet(t.container(), t.spec); {
	case s.NoShm || t.hasShm():
		return 0
	case s.ShmBytes > 0:
		return s.ShmBytes
	case set == 0:
		return mostShm
	default:
		return min(max(set/shmShare>>20<<20, leastShm), mostShm)
	}
}

// hasShm reports whether the container has a /dev/shm that is not ours: a mount there or of the whole of /dev, or the node's.
func (t *training) hasShm() bool {
	if t.spec.HostIPC {
		return true
	}
	for _, m := range t.container().VolumeMounts {
		if at := path.Clean(m.MountPath); (at == shmPath || at == path.Dir(shmPath)) && m.Name != volumeShm {
			return true
		}
	}
	return false
}

// ownsShm reports whether no other container, nor another pod, has this container's /dev/shm, as mounted in the end: containers of a
// pod share the runtime's.
func (t *training) ownsShm() bool {
	others := slices.DeleteFunc(
		slices.Concat(t.spec.Containers, t.spec.InitContainers),
		func(c corev1.Container) bool { return c.Name == t.container().Name },
	)
	for _, m := range t.container().VolumeMounts {
		if path.Clean(m.MountPath) != shmPath {
			continue
		}
		return slices.ContainsFunc(t.spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.EmptyDir != nil }) &&
			!slices.ContainsFunc(others, func(c corev1.Container) bool {
				return slices.ContainsFunc(c.VolumeMounts, func(o corev1.VolumeMount) bool { return o.Name == m.Name })
			})
	}
	return !t.hasShm() && len(t.spec.Containers) == 1 &&
		!slices.ContainsFunc(others, func(c corev1.Container) bool { return c.RestartPolicy != nil })
}
