package main

import (
	_ "embed"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

//go:embed train.py
var trainScript string

//go:embed plain.py
var plainScript string

//go:embed limit.py
var limitScript string

const (
	namespace  = "bench-recovery"
	training   = "trainer"
	scripts    = "scripts"
	pythonHome = "/opt/holdfast-python"
	pace       = "0.02"
	// The scripts by their names in the pods.
	trainFile, plainFile = "train.py", "plain.py"
	// rendezvous is the port of torchrun's own rendezvous, in the first pod's network.
	rendezvous = 29400
)

// shape is how the ranks are spread, and the script that they run.
type shape struct {
	name       string
	pods, each int
	script     string
}

func (s shape) ranks() int { return s.pods * s.each }

// plain says that the script keeps nothing and knows nothing of Holdfast.
func (s shape) plain() bool { return s.script == plainFile }

// system is one thing that is measured, as the job that runs it. All run in pods of the same template.
type system struct {
	name, job string
	// annotations are all that tells Holdfast's jobs from torchrun's.
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

// holdfast says whether the agent starts the ranks.
func (s system) holdfast() bool { return s.annotations != nil }

func (s system) jobName(sh shape) string { return s.job + "-" + sh.name }

// torchrunLine is what a user writes; with Holdfast's annotation the same line runs, unchanged.
func torchrunLine(job string, sh shape) string {
	where := "--standalone"
	if sh.pods > 1 {
		where = fmt.Sprintf("--nnodes=%d --rdzv-backend=c10d --rdzv-id=bench --rdzv-endpoint=%s-0.%s:%d", sh.pods, job, job, rendezvous)
	}
	return fmt.Sprintf("cd /bench && torchrun %s --nproc-per-node=%d --max-restarts=100 %s %s", where, sh.each, sh.script, pace)
}

func limitLine(job string, sh shape, times int) string {
	return fmt.Sprintf("cd /bench && python limit.py $JOB_COMPLETION_INDEX %d %d %d %s-0.%s %d", sh.pods, sh.each, times, job, job, rendezvous)
}

// jobFor is the job that runs a system in a shape.
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
	indexed, none := batchv1.IndexedCompletion, int32(0)
	n := int32(sh.pods)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: annotations},
		Spec: batchv1.JobSpec{
			Completions: &n, Parallelism: &n, CompletionMode: &indexed, BackoffLimit: &none,
			Template: corev1.PodTemplateSpec{Spec: podFor(name, line, s.env)},
		},
	}
}

// podFor is the one template: what every system gets.
func podFor(name, line string, env []corev1.EnvVar) corev1.PodSpec {
	yes, no, user, second := true, false, int64(1000), int64(1)
	memory := resource.MustParse("4Gi")
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Subdomain: name, TerminationGracePeriodSeconds: &second,
		AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		// Each pod of a job is on a node of its own.
		Affinity: &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.JobNameLabel: name}}}}},
		},
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: training, Image: layout.BaseImage, Command: []string{"bash", "-c", line},
			Env: append([]corev1.EnvVar{
				{Name: "PATH", Value: pythonHome + "/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				{Name: "HOME", Value: "/tmp"}, {Name: "OMP_NUM_THREADS", Value: "1"}, {Name: "PYTHONDONTWRITEBYTECODE", Value: "1"},
			}, env...),
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: memory, corev1.ResourceCPU: resource.MustParse("200m")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: memory, layout.GPUResource: resource.MustParse("1")},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "bench", MountPath: "/bench", ReadOnly: true}, {Name: "python", MountPath: pythonHome, ReadOnly: true},
				{Name: "state", MountPath: "/state"}, {Name: "tmp", MountPath: "/tmp"},
			},
		}},
		Volumes: []corev1.Volume{
			{
				Name: "bench",
				VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: scripts}},
				},
			},
			{
				Name: "python",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "python", ReadOnly: true},
				},
			},
			{
				Name: "state",
				VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: quantity("128Mi")},
				},
			},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

// serviceFor gives the pods of a job names that torchrun's rendezvous can find.
func serviceFor(job string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: job, Namespace: namespace},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: map[string]string{batchv1.JobNameLabel: job}},
	}
}

// room is everything that the jobs share.
func room() (*corev1.Namespace, *corev1.ConfigMap, *corev1.PersistentVolumeClaim) {
	class := layout.PythonStorageClass
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
		&corev1.ConfigMap{ObjectMeta: meta(scripts), Data: map[string]string{trainFile: trainScript, plainFile: plainScript, "limit.py": limitScript}},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("python"), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
}
