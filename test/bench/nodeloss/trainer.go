package main

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// The one job that every system runs.
const (
	roomName       = "bench-node-loss"
	container      = "trainer"
	pythonHome     = "/opt/holdfast-python"
	pods           = 2
	ranksEach      = 4
	ranks          = pods * ranksEach
	pause          = "0.05"
	storeSeconds   = 10
	rendezvousPort = 29400
	jobTorchrun    = "torchrun"
	jobHoldfast    = "holdfast"
)

// line is what a user writes; with Holdfast's annotations the same line runs, unchanged. The pod says first that its process is there.
func line(job string) string {
	return fmt.Sprintf(`printf '{"bench":"pod","t":%%s}\n' "$EPOCHREALTIME"; cd /bench && exec torchrun --nnodes=%d --rdzv-backend=c10d --rdzv-id=bench `+
		`--rdzv-endpoint=%s-0.%s:%d --nproc-per-node=%d --max-restarts=100 train.py %s`, pods, job, job, rendezvousPort, ranksEach, pause)
}

// trainJob is the job of a system: annotations are all that tells Holdfast's from torchrun's.
func trainJob(name string) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: roomName},
		Spec: batchv1.JobSpec{
			Completions:    ptr.To[int32](pods),
			Parallelism:    ptr.To[int32](pods),
			CompletionMode: ptr.To(batchv1.IndexedCompletion),
			BackoffLimit:   ptr.To[int32](100),
			Template:       corev1.PodTemplateSpec{Spec: podOf(name, line(name))},
		},
	}
	if name == jobHoldfast {
		job.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi",
			v1alpha1.AnnotationStorageClaim: "storage", v1alpha1.AnnotationStorageInterval: fmt.Sprintf("%ds", storeSeconds)}
	}
	return job
}

// barePod is a pod of the same template that nothing but the kubelet has to do with.
func barePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: roomName},
		Spec: podOf(jobTorchrun, `printf '{"bench":"pod","t":%s}\n' "$EPOCHREALTIME"; exec sleep 600`)}
}

// podOf is the one template: what every system gets.
func podOf(job, line string) corev1.PodSpec {
	memory := resource.MustParse("4Gi")
	claim := func(name, of string, readOnly bool) corev1.Volume {
		return corev1.Volume{
			Name:         name,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: of, ReadOnly: readOnly}},
		}
	}
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Subdomain: job, TerminationGracePeriodSeconds: ptr.To[int64](20),
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To[int64](1000),
			RunAsGroup:     ptr.To[int64](1000),
			FSGroup:        ptr.To[int64](1000),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: container, Image: layout.BaseImage, Command: []string{"bash", "-c", line},
			Env: []corev1.EnvVar{
				{Name: "PATH", Value: pythonHome + "/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				{Name: "HOME", Value: "/tmp"}, {Name: "OMP_NUM_THREADS", Value: "1"}, {Name: "PYTHONDONTWRITEBYTECODE", Value: "1"},
				{Name: "BENCH_STATE", Value: "/shared"}, {Name: "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", Value: "1"},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: memory, corev1.ResourceCPU: resource.MustParse("200m")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: memory, layout.GPUResource: *resource.NewQuantity(ranksEach, resource.DecimalSI)},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "bench", MountPath: "/bench", ReadOnly: true},
				{Name: "python", MountPath: pythonHome, ReadOnly: true},
				{Name: "shared", MountPath: "/shared"},
				{Name: "tmp", MountPath: "/tmp"},
			},
		}},
		Volumes: []corev1.Volume{
			{
				Name: "bench",
				VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "scripts"}},
				},
			},
			claim("python", "python", true), claim("shared", "files-"+job, false),
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
}

// room is everything that the jobs share, and what each has for itself.
func room(script string) []client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: roomName} }
	claim := func(name, class string, mode corev1.PersistentVolumeAccessMode) client.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: ptr.To(class),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	}
	out := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: roomName, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
		&corev1.ConfigMap{ObjectMeta: meta("scripts"), Data: map[string]string{"train.py": script}},
		claim("python", layout.PythonStorageClass, corev1.ReadOnlyMany),
		claim("storage", layout.SharedStorageClass, corev1.ReadWriteMany),
	}
	for _, job := range []string{jobTorchrun, jobHoldfast} {
		out = append(out, claim("files-"+job, layout.SharedStorageClass, corev1.ReadWriteMany),
			&corev1.Service{ObjectMeta: meta(job), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
				Selector: map[string]string{batchv1.JobNameLabel: job}}})
	}
	return out
}
