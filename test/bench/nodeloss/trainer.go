package main

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

// The one job that every system runs.
const (
	roomName     = "bench-node-loss"
	pods         = 2
	ranksEach    = 4
	ranks        = pods * ranksEach
	pause        = "0.05"
	storeSeconds = 10
	jobTorchrun  = "torchrun"
	jobHoldfast  = "holdfast"
)

// line is the command that a user writes; Holdfast runs it unchanged. The pod first reports that its process runs.
func line(job string) string {
	return fmt.Sprintf(`printf '{"bench":"pod","t":%%s}\n' "$EPOCHREALTIME"; exec torchrun --nnodes=%d --rdzv-backend=c10d --rdzv-id=bench `+
		`--rdzv-endpoint=%s-0.%s:%d --nproc-per-node=%d --max-restarts=100 train.py %s`, pods, job, job, lives.RendezvousPort, ranksEach, pause)
}

// trainJob is the job of a system: Holdfast's differs from torchrun's by annotations alone.
func trainJob(name string) *batchv1.Job {
	var annotations map[string]string
	if name == jobHoldfast {
		annotations = map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi",
			v1alpha1.AnnotationStorageClaim: "storage", v1alpha1.AnnotationStorageInterval: fmt.Sprintf("%ds", storeSeconds)}
	}
	return harness.Job(roomName, name, pods, 100, annotations, podOf(name, line(name)))
}

// barePod is a pod of the same template that only the kubelet handles.
func barePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: roomName},
		Spec: podOf(jobTorchrun, `printf '{"bench":"pod","t":%s}\n' "$EPOCHREALTIME"; exec sleep 600`)}
}

func podOf(job, line string) corev1.PodSpec {
	own := corev1.EnvVar{Name: "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", Value: "1"}
	return lives.Pod(job, line, 20, ranksEach, harness.ClaimVolume("files-"+job, false).VolumeSource, own)
}

// room returns the objects that the jobs share, and those of each job.
func room(script string) []client.Object {
	out := lives.Room(roomName, map[string]string{"train.py": script})
	out = append(out, harness.Claim(roomName, "storage", layout.SharedStorageClass, corev1.ReadWriteMany))
	for _, job := range []string{jobTorchrun, jobHoldfast} {
		out = append(out, harness.Claim(roomName, "files-"+job, layout.SharedStorageClass, corev1.ReadWriteMany), lives.Service(roomName, job))
	}
	return out
}
