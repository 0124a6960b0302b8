package webhook

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

func asYAML(t *testing.T, obj any) string {
	t.Helper()
	text, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestGoldenJob(t *testing.T) {
	out := MutateJob(job(t))
	golden.File(t, "testdata/job.admitted.yaml", said(out)+asYAML(t, out.Object))
}

func TestGoldenPods(t *testing.T) {
	noResources := trainer(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} })
	for name, change := range map[string][]func(*batchv1.Job){
		"guaranteed": nil,
		"no-state": {func(j *batchv1.Job) { delete(j.Annotations, v1alpha1.AnnotationStateSize) },
			annotate(v1alpha1.AnnotationStandbys, "off")},
		"storage": {storage("ckpt"), annotate(v1alpha1.AnnotationStorageInterval, "30s"),
			podSpec(func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = ptr.To[int64](5) })},
		"best-effort": {noResources, annotate(v1alpha1.AnnotationRanks, "4")},
		"request-only-root-second-container": {podSpec(func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
			s.SchedulerName = "default-scheduler"
			first := s.Containers[0]
			first.Name, first.Command, first.Args = "logs", nil, nil
			first.Resources = corev1.ResourceRequirements{}
			s.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}}
			s.Containers[0].Command, s.Containers[0].Args = []string{"torchrun"}, []string{"--nproc-per-node=8", "train.py"}
			s.Containers = append([]corev1.Container{first}, s.Containers...)
		}), annotate(v1alpha1.AnnotationContainer, "trainer")},
	} {
		t.Run(name, func(t *testing.T) {
			golden.File(t, "testdata/pod."+name+".yaml", asYAML(t, injected(t, job(t, change...))))
		})
	}
}
