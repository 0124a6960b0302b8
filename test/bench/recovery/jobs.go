package main

import (
	_ "embed"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

//go:embed train.py
var trainScript string

//go:embed plain.py
var plainScript string

//go:embed limit.py
var limitScript string

const (
	namespace = "bench-recovery"
	pace      = "0.02"
	// The file names of the scripts in the pods.
	trainFile, plainFile = "train.py", "plain.py"
)

// shape is the distribution of the ranks, and their script.
type shape struct {
	name       string
	pods, each int
	script     string
}

func (s shape) ranks() int { return s.pods * s.each }

// plain: the script keeps no state and does not use Holdfast.
func (s shape) plain() bool { return s.script == plainFile }

// system is what is measured, as the job that runs it. All run in pods of the same template.
type system struct {
	name, job string
	// annotations are the only difference between Holdfast's jobs and torchrun's.
	annotations map[string]string
	env         []corev1.EnvVar
}

var systems = map[string]system{
	systemTorchrun: {name: systemTorchrun, job: "torchrun", env: []corev1.EnvVar{{Name: "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", Value: "1"}}},
	systemAsComes:  {name: systemAsComes, job: "torchrun-plain"},
	systemHoldfast: {name: systemHoldfast, job: "holdfast", annotations: map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationRanks: ""}},
	systemCold: {name: systemCold, job: "holdfast-cold", annotations: map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationRanks: "", v1alpha1.AnnotationStandbys: "off"}},
	systemLimit: {name: systemLimit, job: "limit"},
}

// holdfast reports whether the agent starts the ranks.
func (s system) holdfast() bool { return s.annotations != nil }

func (s system) jobName(sh shape) string { return s.job + "-" + sh.name }

// torchrunLine is the command that a user writes; Holdfast runs it unchanged.
func torchrunLine(job string, sh shape) string {
	where := "--standalone"
	if sh.pods > 1 {
		where = fmt.Sprintf("--nnodes=%d --rdzv-backend=c10d --rdzv-id=bench --rdzv-endpoint=%s-0.%s:%d", sh.pods, job, job, lives.RendezvousPort)
	}
	return fmt.Sprintf("torchrun %s --nproc-per-node=%d --max-restarts=100 %s %s", where, sh.each, sh.script, pace)
}

func limitLine(job string, sh shape, times int) string {
	return fmt.Sprintf("python limit.py $JOB_COMPLETION_INDEX %d %d %d %s-0.%s %d", sh.pods, sh.each, times, job, job, lives.RendezvousPort)
}

// jobFor returns the job of a system in a shape.
func jobFor(s system, sh shape, times int) *batchv1.Job {
	name := s.jobName(sh)
	line := torchrunLine(name, sh)
	if s.name == systemLimit {
		line = limitLine(name, sh, times)
	}
	annotations := maps.Clone(s.annotations)
	if sh.plain() && s.holdfast() {
		annotations = map[string]string{v1alpha1.AnnotationEnabled: "true"}
	}
	if _, ok := annotations[v1alpha1.AnnotationRanks]; ok {
		annotations[v1alpha1.AnnotationRanks] = fmt.Sprint(sh.each)
	}
	state := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("128Mi"))}
	pod := lives.Pod(name, line, 1, 1, corev1.VolumeSource{EmptyDir: state}, s.env...)
	// Each pod of a job is on its own node.
	pod.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.JobNameLabel: name}}}}},
	}
	return harness.Job(namespace, name, int32(sh.pods), 0, annotations, pod)
}
