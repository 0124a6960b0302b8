package webhook

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// withoutShm removes the mount at /dev/shm from the training container.
func withoutShm(j *batchv1.Job) {
	j.Spec.Template.Spec.Containers[0].VolumeMounts = nil
}

func TestSharedMemory(t *testing.T) {
	const ofAgent = agentBytes
	set := func(request, limit string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) {
			c.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
			if request != "" {
				c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(request)
			}
			if limit != "" {
				c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse(limit)
			}
		})
	}
	mounted := func(path string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "shm", MountPath: path}} })
	}
	size := func(value string) func(*batchv1.Job) { return annotate(v1alpha1.AnnotationShmSize, value) }
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		want   int64
	}{
		"a share of the limit":       {[]func(*batchv1.Job){set("16Gi", "64Gi")}, 4 << 30},
		"whole mebibytes":            {[]func(*batchv1.Job){set("", "33333333333")}, 1986 << 20},
		"of little":                  {[]func(*batchv1.Job){set("", "256Mi")}, 64 << 20},
		"of much":                    {[]func(*batchv1.Job){set("1Ti", "1Ti")}, 8 << 30},
		"of the request alone":       {[]func(*batchv1.Job){set("32Gi", "")}, 2 << 30},
		"where nothing is set":       {[]func(*batchv1.Job){set("", "")}, 8 << 30},
		"said":                       {[]func(*batchv1.Job){set("", "64Gi"), size("20Gi")}, 20 << 30},
		"off":                        {[]func(*batchv1.Job){set("", "64Gi"), size("off")}, 0},
		"mounted by the user":        {[]func(*batchv1.Job){set("", "64Gi"), mounted("/dev/shm/")}, 0},
		"mounted, off":               {[]func(*batchv1.Job){set("", "64Gi"), mounted("/dev/shm"), size("off")}, 0},
		"the node's devices mounted": {[]func(*batchv1.Job){set("", "64Gi"), mounted("/dev")}, 0},
		"mounted elsewhere":          {[]func(*batchv1.Job){set("", "64Gi"), mounted("/dev/shm/mine")}, 4 << 30},
		"the node's":                 {[]func(*batchv1.Job){set("", "64Gi"), podSpec(func(s *corev1.PodSpec) { s.HostIPC = true })}, 0},
	} {
		plain := []func(*batchv1.Job){
			withoutShm,
			annotate(v1alpha1.AnnotationStandbys, "off"),
			func(j *batchv1.Job) { delete(j.Annotations, v1alpha1.AnnotationStateSize) },
		}
		before := job(t, append(plain, c.change...)...)
		pod := injected(t, before)
		var said v1alpha1.Injection
		if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationInjection]), &said); err != nil {
			t.Fatal(err)
		}
		var mount string
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			if m.MountPath == shmPath && m.Name == volumeShm {
				mount = m.Name
			}
		}
		var got int64
		for _, v := range pod.Spec.Volumes {
			if v.Name == volumeShm {
				if got = v.EmptyDir.SizeLimit.Value(); v.EmptyDir.Medium != corev1.StorageMediumMemory {
					t.Errorf("%s: on disk", name)
				}
			}
		}
		if got != c.want || said.ShmBytes != c.want || (mount != "") != (c.want > 0) {
			t.Errorf("%s: %d bytes, said %d, mount %q, want %d", name, got, said.ShmBytes, mount, c.want)
		}
		for of, list := range map[string][2]corev1.ResourceList{
			"request": {before.Spec.Template.Spec.Containers[0].Resources.Requests, pod.Spec.Containers[0].Resources.Requests},
			"limit":   {before.Spec.Template.Spec.Containers[0].Resources.Limits, pod.Spec.Containers[0].Resources.Limits}} {
			if was := list[0].Memory().Value(); was > 0 && list[1].Memory().Value()-was != c.want+ofAgent {
				t.Errorf("%s: the memory %s grew by %d", name, of, list[1].Memory().Value()-was)
			}
		}
		if want := "and for 8Gi at /dev/shm"; name == "where nothing is set" && (len(said.Notes) != 1 || !strings.Contains(said.Notes[0], want)) {
			t.Errorf("%s: notes %q", name, said.Notes)
		}
	}
}

// TestOwnSharedMemory: the agent removes files that ranks leave in /dev/shm only if no other container shares it.
func TestOwnSharedMemory(t *testing.T) {
	sidecar := func(mounts ...corev1.VolumeMount) func(*batchv1.Job) {
		return podSpec(func(s *corev1.PodSpec) {
			s.Containers = append(s.Containers, corev1.Container{Name: "logs", Command: []string{"tail"}, VolumeMounts: mounts})
			s.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
		})
	}
	native := podSpec(func(s *corev1.PodSpec) {
		always := corev1.ContainerRestartPolicyAlways
		s.InitContainers = append(s.InitContainers, corev1.Container{Name: "proxy", Image: "proxy", RestartPolicy: &always})
	})
	off := annotate(v1alpha1.AnnotationShmSize, "off")
	shm := corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"}
	onHost := podSpec(func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/shm"}}}}
	})
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		own    bool
	}{
		"its own volume":              {nil, true},
		"beside a sidecar":            {[]func(*batchv1.Job){sidecar()}, true},
		"that a sidecar mounts":       {[]func(*batchv1.Job){sidecar(shm)}, false},
		"of the node":                 {[]func(*batchv1.Job){onHost}, false},
		"ours":                        {[]func(*batchv1.Job){withoutShm, sidecar()}, true},
		"the runtime's":               {[]func(*batchv1.Job){withoutShm, off}, true},
		"the runtime's, a sidecar":    {[]func(*batchv1.Job){withoutShm, off, sidecar()}, false},
		"the runtime's, a native one": {[]func(*batchv1.Job){withoutShm, off, native}, false},
		"the node's by hostIPC":       {[]func(*batchv1.Job){withoutShm, podSpec(func(s *corev1.PodSpec) { s.HostIPC = true })}, false},
	} {
		pod := injected(t, job(t, c.change...))
		if own := ownShm(pod); own != c.own {
			t.Errorf("%s: own %v, want %v", name, own, c.own)
		}
	}
	pod := injected(t, job(t, withoutShm, off))
	// Another webhook adds a container. Then Holdfast's webhook is called again.
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "proxy", Image: "proxy"})
	out := MutatePod(t.Context(), pod, config)
	if len(out.Errors) > 0 {
		t.Fatal(out.Errors)
	}
	if ownShm(out.Object) {
		t.Error("a sidecar that came after injection has the same /dev/shm, and the agent is said to own it")
	}
}

func ownShm(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "HOLDFAST_SHM" && e.Value == "own" })
}
