package webhook

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/settings"
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
	out := createJob(t.Context(), job(t), Facts{})
	golden.File(t, "testdata/job.admitted.yaml", said(out)+asYAML(t, out.Object))
}

// TestMemoryThatExceedsTheJobs: a user whose pods request less memory than is added gets a warning with the amount. Standbys are counted
// once per pod.
func TestMemoryThatExceedsTheJobs(t *testing.T) {
	small := trainer(func(c *corev1.Container) {
		c.Resources = corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi"), gpuResource: resource.MustParse("4")},
		}
	})
	out := createJob(t.Context(), job(t, small), Facts{})
	if want := "warning: holdfast adds 1346Mi of memory to the 512Mi of each pod: 4 ranks need 770Mi for state in memory and 512Mi for standbys\n"; said(out) != want {
		t.Errorf("got  %swant %s", said(out), want)
	}
}

// TestMemoryThatKueueDoesNotCount: a Job in a queue of Kueue gets a warning with the memory that Kueue does not count, if memory is added.
func TestMemoryThatKueueDoesNotCount(t *testing.T) {
	queued := func(j *batchv1.Job) { j.Labels = setKey(j.Labels, settings.QueueLabel, "team-a") }
	nothingSet := trainer(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} })
	const want = "metadata.labels[kueue.x-k8s.io/queue-name]: Kueue counts the pod template, and holdfast adds 962Mi of memory to each pod (1923Mi in all)"
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		warned bool
	}{"queued": {[]func(*batchv1.Job){queued}, true}, "not queued": {nil, false}, "no memory": {[]func(*batchv1.Job){queued, nothingSet}, false}} {
		if text := said(createJob(t.Context(), job(t, c.change...), Facts{})); strings.Contains(text, want) != c.warned ||
			strings.Contains(text, "Kueue") != c.warned {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestGoldenPods(t *testing.T) {
	noResources := trainer(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} })
	golden.File(
		t,
		"testdata/pod.image.yaml",
		asYAML(
			t,
			MutatePod(
				t.Context(),
				podOf(createJob(t.Context(), job(t, bare()), readAs([]string{"torchrun"}, []string{"--nproc-per-node=2", "train.py"})).Object),
				config,
			).Object,
		),
	)
	for name, change := range map[string][]func(*batchv1.Job){
		"guaranteed": nil,
		"no-state": {func(j *batchv1.Job) { delete(j.Annotations, v1alpha1.AnnotationStateSize) },
			annotate(v1alpha1.AnnotationStandbys, "off")},
		"storage": {storage("ckpt"), annotate(v1alpha1.AnnotationStorageInterval, "30s"),
			podSpec(func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = ptr.To[int64](5) })},
		"shared-memory": {withoutShm, annotate(v1alpha1.AnnotationShmSize, "2Gi")},
		"two-slots":     {annotate(v1alpha1.AnnotationSlots, "2")},
		"volcano": {scheduledBy("volcano"), func(j *batchv1.Job) {
			j.Annotations["scheduling.volcano.sh/queue-name"], j.Annotations["volcano.sh/preemptable"] = "research", "false"
		}},
		"max-restarts": {annotate(v1alpha1.AnnotationMaxRestarts, "0")},
		"best-effort":  {noResources, annotate(v1alpha1.AnnotationRanks, "4")},
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
