package webhook

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/seeds"
)

func TestInjectedPodPassesTheRestrictedProfile(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := injected(t, job(t))
	level := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	for _, r := range evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec) {
		if !r.Allowed {
			t.Errorf("%s: %s", r.ForbiddenReason, r.ForbiddenDetail)
		}
	}
}

// Autoscalers remove no node of a gang's pods, unless the user allows that.
func TestAutoscalersLeaveTheNodesOfAGang(t *testing.T) {
	for name, c := range map[string]struct{ own, want map[string]string }{
		"unset":     {nil, map[string]string{doNotDisruptKey: "true", safeToEvictKey: "false"}},
		"one set":   {map[string]string{safeToEvictKey: "true"}, map[string]string{doNotDisruptKey: "true", safeToEvictKey: "true"}},
		"both set":  {map[string]string{doNotDisruptKey: "false", safeToEvictKey: "true"}, map[string]string{doNotDisruptKey: "false", safeToEvictKey: "true"}},
		"set empty": {map[string]string{doNotDisruptKey: ""}, map[string]string{doNotDisruptKey: "", safeToEvictKey: "false"}},
	} {
		pod := podOf(admitted(t, job(t)))
		maps.Copy(pod.Annotations, c.own)
		out := MutatePod(t.Context(), pod, config)
		if len(out.Errors) > 0 {
			t.Fatalf("%s: %v", name, out.Errors)
		}
		for key, want := range c.want {
			if got, set := out.Object.Annotations[key]; !set || got != want {
				t.Errorf("%s: %s is %q (set: %t), want %q", name, key, got, set, want)
			}
		}
	}
}

// The pods of a gang that requests nodes as a whole name the request for the autoscaler, unless they use another request.
func TestPodsConsumeTheRequestOfTheirGang(t *testing.T) {
	const theirs = "cluster-autoscaler.kubernetes.io/consume-provisioning-request"
	class := annotate(v1alpha1.AnnotationProvisioningClass, "queued-provisioning.gke.io")
	for name, c := range map[string]struct {
		job       *batchv1.Job
		own, want map[string]string
	}{
		"no class":          {job(t), nil, map[string]string{}},
		"a class":           {job(t, class), nil, map[string]string{v1alpha1.AnnotationConsumesRequest: "holdfast-llama", v1alpha1.AnnotationRequestClass: "queued-provisioning.gke.io"}},
		"another's":         {job(t, class), map[string]string{v1alpha1.AnnotationConsumesRequest: "kueue-1"}, map[string]string{v1alpha1.AnnotationConsumesRequest: "kueue-1"}},
		"another's, of old": {job(t, class), map[string]string{theirs: "kueue-1"}, map[string]string{theirs: "kueue-1"}},
	} {
		pod := podOf(admitted(t, c.job))
		maps.Copy(pod.Annotations, c.own)
		out := MutatePod(t.Context(), pod, config)
		got := map[string]string{}
		for _, key := range []string{v1alpha1.AnnotationConsumesRequest, v1alpha1.AnnotationRequestClass, theirs} {
			if value, set := out.Object.Annotations[key]; set {
				got[key] = value
			}
		}
		if len(out.Errors) > 0 || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v; %v", name, got, c.want, out.Errors)
		}
	}
}

func TestPodsThatAreNotTouched(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"no keys": func(p *corev1.Pod) { p.Annotations, p.Labels = nil, nil },
		"opted out": func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "false"}
			p.Labels = nil
		},
		"of a Job that existed before Holdfast": func(p *corev1.Pod) {
			delete(p.Annotations, v1alpha1.AnnotationGangSize)
			delete(p.Labels, v1alpha1.LabelGang)
		},
	} {
		pod := podOf(admitted(t, job(t)))
		change(pod)
		out := MutatePod(t.Context(), pod, config)
		if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(pod, out.Object) {
			t.Errorf("%s: touched: %s", name, said(out))
		}
	}
}

// A pod of a PodGroup of another API may have annotations on the fabric.
func TestPodsOfGroups(t *testing.T) {
	pod := func(scheduler string, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   "ns",
				Name:        "p",
				Labels:      map[string]string{"scheduling.x-k8s.io/pod-group": "g"},
				Annotations: annotations,
			},
			Spec: corev1.PodSpec{SchedulerName: scheduler},
		}
	}
	rack := map[string]string{v1alpha1.AnnotationTopologyRequired: "rack"}
	in := pod(v1alpha1.SchedulerName, rack)
	if out := MutatePod(t.Context(), in, config); len(out.Errors) > 0 || !equality.Semantic.DeepEqual(in, out.Object) {
		t.Errorf("%v: %+v", out.Errors, out.Object)
	}
	for name, refused := range map[string]*corev1.Pod{
		"of the default scheduler": pod("", rack),
		"a key for jobs":           pod(v1alpha1.SchedulerName, map[string]string{v1alpha1.AnnotationStateSize: "1Gi"}),
		"no level":                 pod(v1alpha1.SchedulerName, map[string]string{v1alpha1.AnnotationTopologyRequired: ""}),
		"a key of ours alone":      pod(v1alpha1.SchedulerName, map[string]string{v1alpha1.AnnotationGangSize: "3"}),
	} {
		if out := MutatePod(t.Context(), refused, config); len(out.Errors) != 1 {
			t.Errorf("%s: %v", name, out.Errors)
		}
	}
}

func TestPodRefusals(t *testing.T) {
	const counts = "metadata.annotations[holdfast.dev/gang-size]: Invalid value: %q: must be from 1 to 5000, and admission of the Job writes it: remove the annotation and set parallelism of the Job"
	for name, size := range map[string]string{"more than a gang can have": "5001", "more than anybody can count": "2147483647", "more than a number": "99999999999999999999", "none": "0", "less": "-1", "no number": "two"} {
		pod := podOf(admitted(t, job(t)))
		pod.Annotations[v1alpha1.AnnotationGangSize] = size
		if out := MutatePod(t.Context(), pod, config); len(out.Errors) != 1 || said(out) != "refused: "+fmt.Sprintf(counts, size)+"\n" {
			t.Errorf("%s: %s", name, said(out))
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"unknown key":   func(p *corev1.Pod) { p.Annotations["holdfast.dev/x"] = "" },
		"unknown label": func(p *corev1.Pod) { p.Labels["holdfast.dev/x"] = "" },
		"nobody's pod":  func(p *corev1.Pod) { p.OwnerReferences = nil },
		"nobody's pod, in a gang": func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, nil
		},
		"of a replica set": func(p *corev1.Pod) {
			p.OwnerReferences[0].Kind, p.OwnerReferences[0].APIVersion = "ReplicaSet", "apps/v1"
		},
		"of another gang":  func(p *corev1.Pod) { p.Labels[v1alpha1.LabelGang] = "other" },
		"in another slot":  func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSlot] = "1" },
		"in another role":  func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangRole] = "master" },
		"without an index": func(p *corev1.Pod) { delete(p.Annotations, batchv1.JobCompletionIndexAnnotation) },
		"index as a label": func(p *corev1.Pod) {
			p.Labels[batchv1.JobCompletionIndexAnnotation] = "0"
			delete(p.Annotations, batchv1.JobCompletionIndexAnnotation)
		},
		"watched, with a place":   func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationMode] = v1alpha1.ModeObserve },
		"not admitted, in a gang": func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationGangSize) },
		"gang without opt-in":     func(p *corev1.Pod) { p.Annotations = nil },
		"marked by hand":          func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationInjected] = "v1:0123456789abcdef" },
		"no command after all":    func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil },
	} {
		pod := podOf(admitted(t, job(t)))
		change(pod)
		if out := MutatePod(t.Context(), pod, config); len(out.Errors) == 0 {
			t.Errorf("%s: not refused", name)
		}
	}
}

// TestOtherKindsAreNamed: the reason why a pod is not created names the object whose template has the annotation.
func TestOtherKindsAreNamed(t *testing.T) {
	pod := podOf(admitted(t, job(t)))
	pod.Labels, pod.Annotations = nil, map[string]string{v1alpha1.AnnotationEnabled: "true"}
	pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Name = "TrainJob", "trainer.kubeflow.org/v1alpha1", "llama"
	if got := said(MutatePod(t.Context(), pod, config)); !strings.Contains(got, "TrainJob llama (trainer.kubeflow.org/v1alpha1), and holdfast does not support that kind yet: train in an Indexed batch Job, a Volcano Job, a JobSet or a PyTorchJob") {
		t.Error(got)
	}
}

// TestIndexesAreSlots: a pod's slot is its index in the Job. No pod has a slot that its gang does not have.
func TestIndexesAreSlots(t *testing.T) {
	for index, want := range map[string]bool{"0": true, "1": true, "2": false, "-1": false, "01": false, "+1": false, "x": false, "": false, "99999999999999999999": false} {
		pod := podOf(admitted(t, job(t)))
		pod.Annotations[batchv1.JobCompletionIndexAnnotation] = index
		out := MutatePod(t.Context(), pod, config)
		if !want {
			if says := "metadata.annotations[batch.kubernetes.io/job-completion-index]: Invalid value: \"" + index + "\": a pod of this gang has an index from 0 to 1"; !strings.Contains(said(out), says) {
				t.Errorf("%q: %s", index, said(out))
			}
			continue
		}
		slot, ok := membership.GangSlot(out.Object)
		size, err := membership.GangSize(out.Object)
		if len(out.Errors) > 0 || !ok || strconv.Itoa(slot) != index || size != 2 || err != nil ||
			membership.GangRole(out.Object) != v1alpha1.RoleWorker || string(membership.JobUID(out.Object)) != "uid-of-job" {
			t.Errorf("%q: slot %d, size %d, %s: %s", index, slot, size, membership.JobUID(out.Object), said(out))
		}
	}
}

// TestOnlyAdmissionNamesTheJob: no container can claim that its pod was created for another job, neither in a Job nor in a pod that looks
// injected.
func TestOnlyAdmissionNamesTheJob(t *testing.T) {
	variable := corev1.EnvVar{Name: membership.JobVariable, Value: "another"}
	side := func(j *batchv1.Job) {
		spec := &j.Spec.Template.Spec
		spec.Containers = append([]corev1.Container{{Name: "side", Image: "i", Env: []corev1.EnvVar{variable}}}, spec.Containers...)
		j.Annotations[v1alpha1.AnnotationContainer] = spec.Containers[1].Name
	}
	const says = "spec.containers[0].env[0]: Invalid value: \"another\": HOLDFAST_JOB_UID names the job of a pod and is written only by holdfast: remove it"
	if out := createJob(t.Context(), job(t, side), Facts{}); !strings.Contains(said(out), "spec.template."+says) {
		t.Errorf("in a Job: %s", said(out))
	}
	again := injected(t, job(t))
	env := again.Spec.Containers[0].Env
	if out := MutatePod(t.Context(), again, config); len(out.Errors) > 0 {
		t.Errorf("an injected pod: %s", said(out))
	}
	again.Spec.Containers[0].Env = append([]corev1.EnvVar{variable},
		slices.DeleteFunc(slices.Clone(env), func(e corev1.EnvVar) bool { return e.Name == membership.JobVariable })...)
	if out := MutatePod(t.Context(), again, config); !strings.Contains(said(out), says) {
		t.Errorf("in a pod that says that it was injected: %s", said(out))
	}
}

func TestGeneratedJobNameReachesThePod(t *testing.T) {
	j := admitted(t, job(t, func(j *batchv1.Job) { j.Name, j.GenerateName = "", "llama-" }))
	j.Name = "llama-x7k"
	pod := podOf(j)
	out := MutatePod(t.Context(), pod, config)
	if len(out.Errors) > 0 || out.Object.Labels[v1alpha1.LabelGang] != "llama-x7k" {
		t.Errorf("labels %v: %s", out.Object.Labels, said(out))
	}
}

func TestRanks(t *testing.T) {
	torchrun := func(args ...string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) { c.Command, c.Args = []string{"torchrun"}, append(args, "train.py") })
	}
	noGPU := trainer(func(c *corev1.Container) {
		delete(c.Resources.Limits, gpuResource)
		delete(c.Resources.Requests, gpuResource)
	})
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		want   string
	}{
		"GPUs":                     {nil, "2"},
		"annotation":               {[]func(*batchv1.Job){annotate(v1alpha1.AnnotationRanks, "5"), torchrun("--nproc-per-node=4")}, "5"},
		"launcher":                 {[]func(*batchv1.Job){torchrun("--nproc-per-node=4")}, "4"},
		"launcher says nothing":    {[]func(*batchv1.Job){torchrun()}, "1"},
		"launcher counts GPUs":     {[]func(*batchv1.Job){torchrun("--nproc-per-node=gpu")}, "2"},
		"launcher counts, no GPUs": {[]func(*batchv1.Job){torchrun("--nproc-per-node=auto"), noGPU}, "1"},
		"launcher, known later":    {[]func(*batchv1.Job){torchrun("--nproc-per-node=$(JOB_COMPLETION_INDEX)")}, "2"},
		"known later, annotation":  {[]func(*batchv1.Job){annotate(v1alpha1.AnnotationRanks, "5"), torchrun("--nproc-per-node=$(JOB_COMPLETION_INDEX)")}, "5"},
		"known beside known later": {[]func(*batchv1.Job){torchrun("--nproc-per-node=4", "--node-rank=$(JOB_COMPLETION_INDEX)")}, "4"},
		"as many as we count":      {[]func(*batchv1.Job){torchrun("--nproc-per-node=$(HOLDFAST_RANKS)")}, "2"},
		"launcher in a shell":      {[]func(*batchv1.Job){noGPU}, "2"},
		"nothing known":            {[]func(*batchv1.Job){noGPU, trainer(func(c *corev1.Container) { c.Command, c.Args = []string{"run.sh"}, nil })}, "1"},
		"behind a fetcher of secrets": {[]func(*batchv1.Job){trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"/vault/vault-env"}, []string{"torchrun", "--nproc-per-node=4", "train.py"}
		})}, "4"},
		"behind numactl": {[]func(*batchv1.Job){trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"numactl", "--membind=0", "python3", "-m", "torch.distributed.run", "--nproc-per-node=8", "train.py"}, nil
		})}, "8"},
	} {
		pod := injected(t, job(t, c.change...))
		if got := envOf(pod, "HOLDFAST_RANKS"); got != c.want {
			t.Errorf("%s: %s ranks, want %s", name, got, c.want)
		}
	}
}

func envOf(pod *corev1.Pod, name string) string {
	for _, c := range pod.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == name {
				return e.Value
			}
		}
	}
	return ""
}

// TestInjectionTwice: the API server calls the webhook again after other webhooks. Some of these change what Holdfast added or counted.
func TestInjectionTwice(t *testing.T) {
	for name, between := range map[string]func(*corev1.Pod){
		"nothing between": func(*corev1.Pod) {},
		"a sidecar between": func(p *corev1.Pod) {
			p.Spec.Containers = append([]corev1.Container{{Name: "proxy"}}, p.Spec.Containers...)
		},
		"a mirror between": func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "mirror.example.com/agent:1" },
		"more memory between": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("9Gi")
		},
		"a fetcher of secrets between": func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Command, c.Args = []string{"/vault/vault-env"}, append(c.Command, c.Args...)
		},
		"a fetcher with arguments between": func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Command = append([]string{"/op/bin/op", "run", "--"}, c.Command...)
		},
		"a shell between": func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Command, c.Args = []string{"sh", "-c", "source /vault/secrets/env && exec " + strings.Join(append(c.Command, c.Args...), " ")}, nil
		},
		"other devices between": func(p *corev1.Pod) {
			delete(p.Spec.Containers[0].Resources.Limits, gpuResource)
			delete(p.Spec.Containers[0].Resources.Requests, gpuResource)
		},
		"an environment before": func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append([]corev1.EnvVar{{Name: "A"}}, p.Spec.Containers[0].Env...)
		},
	} {
		once := injected(t, job(t))
		between(once)
		twice := MutatePod(t.Context(), once, config)
		if len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(once, twice.Object) {
			t.Errorf("%s: the second call changes the pod: %s", name, said(twice))
		}
	}
	replaced := injected(t, job(t))
	replaced.Spec.Containers[0].Command = []string{"bash", "-c"}
	if out := MutatePod(t.Context(), replaced, config); len(out.Errors) > 0 || out.Object.Spec.Containers[0].Command[0] != agentPath {
		t.Errorf("a command that another webhook replaced is not wrapped: %q", out.Object.Spec.Containers[0].Command)
	}
	removed := injected(t, job(t))
	removed.Spec.InitContainers = nil
	if out := MutatePod(t.Context(), removed, config); len(out.Object.Spec.InitContainers) != 1 {
		t.Error("what another webhook removed is not put back")
	}
}

// TestRandomPods checks the rules of injection for random pods.
func TestRandomPods(t *testing.T) {
	for seed := range seeds.All(t, uint64(500)) {
		r := rand.New(rand.NewPCG(seed, 1))
		j := randomJob(t, r)
		before := podOf(admitted(t, j))
		out := MutatePod(t.Context(), before, config)
		if len(out.Errors) > 0 {
			t.Fatalf("seed %d: %v", seed, out.Errors.ToAggregate())
		}
		after := out.Object
		if err := promises(before, after); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, asYAML(t, after))
		}
		if again := MutatePod(t.Context(), after, config); len(again.Errors) > 0 || !equality.Semantic.DeepEqual(after, again.Object) {
			t.Fatalf("seed %d: injecting twice differs: %s", seed, said(again))
		}
	}
}

// promises checks the rules that must hold between a pod and the same pod injected.
func promises(before, after *corev1.Pod) error {
	if b, a := qosClass(&before.Spec), qosClass(&after.Spec); a != b {
		return fmt.Errorf("QoS class %s became %s", b, a)
	}
	if len(after.Spec.Containers) != len(before.Spec.Containers) {
		return fmt.Errorf("containers were added or removed")
	}
	for i := range before.Spec.Containers {
		b, a := before.Spec.Containers[i], after.Spec.Containers[i]
		if !equality.Semantic.DeepEqual(a.VolumeMounts[:len(b.VolumeMounts)], append([]corev1.VolumeMount{}, b.VolumeMounts...)) {
			return fmt.Errorf("mounts of %s changed", b.Name)
		}
		if !equality.Semantic.DeepEqual(a.Args, b.Args) || !equality.Semantic.DeepEqual(a.Lifecycle, b.Lifecycle) {
			return fmt.Errorf("arguments or hooks of %s changed", b.Name)
		}
		for _, m := range a.VolumeMounts[len(b.VolumeMounts):] {
			if m.MountPath == shmPath &&
				(before.Spec.HostIPC || slices.ContainsFunc(b.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == shmPath })) {
				return fmt.Errorf("/dev/shm was mounted over what was there")
			}
		}
		if limit, ok := a.Resources.Limits[corev1.ResourceMemory]; ok {
			request := a.Resources.Requests[corev1.ResourceMemory]
			if request.Cmp(limit) > 0 {
				return fmt.Errorf("the memory request of %s exceeds its limit", b.Name)
			}
		}
	}
	return sameMemory(before, after)
}

// sameMemory checks that memory was added where the annotation says so, and nowhere else.
func sameMemory(before, after *corev1.Pod) error {
	trains := before.Annotations[v1alpha1.AnnotationContainer]
	for i := range before.Spec.Containers {
		b, a := before.Spec.Containers[i], after.Spec.Containers[i]
		for _, pair := range [][2]corev1.ResourceList{{b.Resources.Requests, a.Resources.Requests}, {b.Resources.Limits, a.Resources.Limits}} {
			was, set := pair[0][corev1.ResourceMemory]
			is, still := pair[1][corev1.ResourceMemory]
			grew := is.Value() - was.Value()
			switch {
			case set != still:
				return fmt.Errorf("a memory value of %s came or went", b.Name)
			case b.Name != trains && grew != 0, set && b.Name == trains && grew <= 0:
				return fmt.Errorf("memory of %s grew by %d", b.Name, grew)
			}
		}
	}
	return nil
}

// randomJob returns a Job with random resources, containers and security settings.
func randomJob(t *testing.T, r *rand.Rand) *batchv1.Job {
	list := func() corev1.ResourceList {
		l := corev1.ResourceList{}
		if r.IntN(2) == 0 {
			l[corev1.ResourceCPU] = resource.MustParse([]string{"50m", "250m", "1", "32"}[r.IntN(4)])
		}
		if r.IntN(2) == 0 {
			l[corev1.ResourceMemory] = resource.MustParse([]string{"64M", "1Gi", "900Gi"}[r.IntN(3)])
		}
		return l
	}
	resources := func() corev1.ResourceRequirements {
		switch limits := list(); r.IntN(4) {
		case 0:
			return corev1.ResourceRequirements{}
		case 1:
			return corev1.ResourceRequirements{Requests: limits.DeepCopy(), Limits: limits}
		case 2:
			return corev1.ResourceRequirements{Requests: limits}
		default:
			full := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
			return corev1.ResourceRequirements{Requests: full.DeepCopy(), Limits: full}
		}
	}
	j := job(t)
	spec := &j.Spec.Template.Spec
	for i := range r.IntN(3) {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("side-%d", i), Resources: resources()})
	}
	for i := range r.IntN(3) {
		spec.InitContainers = append(spec.InitContainers, corev1.Container{Name: fmt.Sprintf("init-%d", i), Resources: resources()})
	}
	spec.Containers[0].Resources = resources()
	if r.IntN(4) == 0 {
		spec.Resources = ptr.To(resources())
	}
	spec.SecurityContext = []*corev1.PodSecurityContext{
		nil,
		{RunAsUser: ptr.To[int64](0)},
		{RunAsUser: ptr.To[int64](1000), FSGroup: ptr.To[int64](5)},
	}[r.IntN(3)]
	annotate(v1alpha1.AnnotationStandbys, []string{"auto", "off"}[r.IntN(2)])(j)
	if r.IntN(3) == 0 {
		delete(j.Annotations, v1alpha1.AnnotationStateSize)
	}
	if r.IntN(2) == 0 {
		spec.Containers[0].VolumeMounts = nil
		if spec.HostIPC = r.IntN(4) == 0; !spec.HostIPC {
			annotate(v1alpha1.AnnotationShmSize, []string{"off", "64Mi", "100Gi"}[r.IntN(3)])(j)
		}
	}
	j.Spec.Template.ObjectMeta = metav1.ObjectMeta{}
	return j
}

func TestInstallRunsAsTheTrainerDoesButNeverAsRoot(t *testing.T) {
	for name, c := range map[string]struct {
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		want      *int64
	}{
		"nothing said":           {nil, nil, nil},
		"the pod's user":         {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](7)}, nil, nil},
		"the container's user":   {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](7)}, &corev1.SecurityContext{RunAsUser: ptr.To[int64](8)}, ptr.To[int64](8)},
		"root":                   {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}, nil, ptr.To[int64](nobody)},
		"root in the container":  {nil, &corev1.SecurityContext{RunAsUser: ptr.To[int64](0)}, ptr.To[int64](nobody)},
		"root in the pod, not c": {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}, &corev1.SecurityContext{RunAsUser: ptr.To[int64](8)}, ptr.To[int64](8)},
	} {
		pod := injected(t, job(t, podSpec(func(s *corev1.PodSpec) {
			s.SecurityContext, s.Containers[0].SecurityContext = c.pod, c.container
		})))
		if got := pod.Spec.InitContainers[0].SecurityContext.RunAsUser; !ptr.Equal(got, c.want) {
			t.Errorf("%s: runs as %v", name, ptr.Deref(got, -1))
		}
	}
}

// TestPrivateRegistries: the agent's image is pulled with the secrets of the installation, in addition to those of the pod.
func TestPrivateRegistries(t *testing.T) {
	cfg := config
	cfg.PullPolicy, cfg.PullSecrets = corev1.PullAlways, []string{"registry", "mirror"}
	pod := podOf(admitted(t, job(t, podSpec(func(s *corev1.PodSpec) {
		s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}, {Name: "mirror"}}
	}))))
	out := MutatePod(t.Context(), pod, cfg)
	if got := fmt.Sprint(out.Object.Spec.ImagePullSecrets); got != "[{mine} {mirror} {registry}]" ||
		out.Object.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%s, %s", got, out.Object.Spec.InitContainers[0].ImagePullPolicy)
	}
	if twice := MutatePod(t.Context(), out.Object, cfg); len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, twice.Object) {
		t.Errorf("the second call changes the pod: %s", said(twice))
	}
	if plain := injected(t, job(t)); len(plain.Spec.ImagePullSecrets) > 0 ||
		plain.Spec.InitContainers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("without any: %+v", plain.Spec.ImagePullSecrets)
	}
}
