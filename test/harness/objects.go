package harness

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/trainer"
)

// Claim returns a claim of 1 GiB.
func Claim(namespace, name, class string, mode corev1.PersistentVolumeAccessMode) client.Object {
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
}

// ClaimVolume is a volume of a claim.
func ClaimVolume(name string, readOnly bool) corev1.Volume {
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}
}

// ConfigVolume is a volume of a ConfigMap.
func ConfigVolume(name string) corev1.Volume {
	of := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: of}}
}

// Job returns an indexed Job of so many pods.
func Job(namespace, name string, pods, backoff int32, annotations map[string]string, spec corev1.PodSpec) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: annotations},
		Spec: batchv1.JobSpec{
			Completions:    &pods,
			Parallelism:    &pods,
			CompletionMode: ptr.To(batchv1.IndexedCompletion),
			BackoffLimit:   &backoff,
			Template:       corev1.PodTemplateSpec{Spec: spec},
		},
	}
}

// TrainerRoom returns what pods of TrainerPod need in their namespace, and a claim for shared files.
func TrainerRoom(namespace string) []client.Object {
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "trainer"},
			Data:       map[string]string{"trainer.py": trainer.Script, "torch_trainer.py": trainer.Torch},
		},
		Claim(namespace, "python", layout.PythonStorageClass, corev1.ReadOnlyMany),
		Claim(namespace, "shared", layout.SharedStorageClass, corev1.ReadWriteMany),
	}
}

// TrainerPod has a container "trainer" whose command finds torchrun in its PATH, and trainer.Script and trainer.Torch in /trainer.
func TrainerPod(line string, grace, gpus int64) corev1.PodSpec {
	limits := corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("192Mi"),
		layout.GPUResource:    *resource.NewQuantity(gpus, resource.DecimalSI),
	}
	requests := limits.DeepCopy()
	requests[corev1.ResourceCPU] = resource.MustParse("50m")
	user := ptr.To[int64](1000)
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: &grace,
		SecurityContext:               &corev1.PodSecurityContext{RunAsUser: user, RunAsGroup: user, RunAsNonRoot: ptr.To(true)},
		Containers: []corev1.Container{{
			Name:         "trainer",
			Image:        layout.BaseImage,
			Command:      []string{"bash", "-c", "PATH=$PATH:/opt/holdfast-python/venv/bin exec " + line},
			Resources:    corev1.ResourceRequirements{Requests: requests, Limits: limits},
			VolumeMounts: []corev1.VolumeMount{{Name: "trainer", MountPath: "/trainer"}, {Name: "python", MountPath: "/opt/holdfast-python", ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{ConfigVolume("trainer"), ClaimVolume("python", true)},
	}
}

// HostFolder mounts a folder of the node, read-only.
func HostFolder(spec *corev1.PodSpec, name, path, at string) {
	from := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: from})
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
}
