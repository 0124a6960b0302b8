package webhook

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/settings"
)

func TestJobRefusals(t *testing.T) {
	label := func(key, value string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Labels = setKey(j.Labels, key, value) }
	}
	direct := func(args ...string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) { c.Command, c.Args = []string{"torchrun"}, args })
	}
	cases := []struct {
		name   string
		change func(*batchv1.Job)
	}{
		{"unknown key", annotate("holdfast.dev/stat-size", "1Gi")},
		{"unknown key on the template", annotateTemplate("holdfast.dev/node", "x")},
		{"unknown label", label("holdfast.dev/x", "y")},
		{"setting as a label", label("holdfast.dev/enabled", "true")},
		{"enabled maybe", annotate(v1alpha1.AnnotationEnabled, "yes")},
		{"setting without opt-in", func(j *batchv1.Job) { delete(j.Annotations, v1alpha1.AnnotationEnabled) }},
		{"state size without unit", annotate(v1alpha1.AnnotationStateSize, "40")},
		{"state size zero", annotate(v1alpha1.AnnotationStateSize, "0")},
		{"state size negative", annotate(v1alpha1.AnnotationStateSize, "-4Gi")},
		{"state size in words", annotate(v1alpha1.AnnotationStateSize, "big")},
		{"state size too big", annotate(v1alpha1.AnnotationStateSize, "1Pi")},
		{"one slot", annotate(v1alpha1.AnnotationSlots, "1")},
		{"slots with a sign", annotate(v1alpha1.AnnotationSlots, "+2")},
		{"slots without state", func(j *batchv1.Job) {
			delete(j.Annotations, v1alpha1.AnnotationStateSize)
			annotate(v1alpha1.AnnotationSlots, "2")(j)
		}},
		{"standbys maybe", annotate(v1alpha1.AnnotationStandbys, "on")},
		{"standby memory", annotate(v1alpha1.AnnotationStandbyMemory, "lots")},
		{"standby modules", annotate(v1alpha1.AnnotationStandbySkipModules, "pynvml, wandb")},
		{"ranks zero", annotate(v1alpha1.AnnotationRanks, "0")},
		{"ranks fraction", annotate(v1alpha1.AnnotationRanks, "1.5")},
		{"storage without state", func(j *batchv1.Job) {
			delete(j.Annotations, v1alpha1.AnnotationStateSize)
			annotate(v1alpha1.AnnotationStorageClaim, "ckpt")(j)
		}},
		{"storage claim that is no name", annotate(v1alpha1.AnnotationStorageClaim, "My Claim")},
		{"storage interval without a claim", annotate(v1alpha1.AnnotationStorageInterval, "1m")},
		{"storage interval too short", annotate(v1alpha1.AnnotationStorageInterval, "500ms")},
		{"storage interval without a unit", annotate(v1alpha1.AnnotationStorageInterval, "60")},
		{"storage interval with a fraction", annotate(v1alpha1.AnnotationStorageInterval, "1.5s")},
		{"one step kept", annotate(v1alpha1.AnnotationKeepCheckpoints, "1")},
		{"more steps kept than may be", annotate(v1alpha1.AnnotationKeepCheckpoints, "33")},
		{"steps kept in words", annotate(v1alpha1.AnnotationKeepCheckpoints, "all")},
		{"steps kept without storage", annotate(v1alpha1.AnnotationKeepCheckpoints, "5")},
		{"a step kept each second", annotate(v1alpha1.AnnotationKeepCheckpointEvery, "1s")},
		{"a step kept by time without storage", annotate(v1alpha1.AnnotationKeepCheckpointEvery, "1h")},
		{"a pin in words", annotate(v1alpha1.AnnotationPinnedCheckpoints, "the best one")},
		{"a pin without a generation", annotate(v1alpha1.AnnotationPinnedCheckpoints, "120")},
		{"a pin with zeros before it", annotate(v1alpha1.AnnotationPinnedCheckpoints, "0120@3")},
		{"more pins than may be", annotate(v1alpha1.AnnotationPinnedCheckpoints, "1@1,2@1,3@1,4@1,5@1,6@1,7@1,8@1,9@1,10@1,11@1,12@1,13@1,14@1,15@1,16@1,17@1")},
		{"a pin without storage", annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3")},
		{"a pin on the template", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationStorageClaim, "ckpt")(j)
			annotateTemplate(v1alpha1.AnnotationPinnedCheckpoints, "120@3")(j)
		}},
		{"hang in words", annotate(v1alpha1.AnnotationHang, "restart")},
		{"hang timeout without a unit", annotate(v1alpha1.AnnotationHangTimeout, "1800")},
		{"hang timeout too short", annotate(v1alpha1.AnnotationHangTimeout, "60s")},
		{"hang timeout that ends nothing", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationHang, "report")(j)
			annotate(v1alpha1.AnnotationHangTimeout, "30m")(j)
		}},
		{"least pods in words", annotate(v1alpha1.AnnotationMinPods, "some")},
		{"least pods above all", annotate(v1alpha1.AnnotationMinPods, "3")},
		{"least pods other than the launcher's", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "2")(j)
			direct("--nnodes=1:2", "train.py")(j)
		}},
		{"least pods of slices", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "1")(j)
			annotate(v1alpha1.AnnotationSliceSize, "2")(j)
		}},
		{"least pods that divide a block", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "1")(j)
			annotate(v1alpha1.AnnotationBlockSize, "2")(j)
		}},
		{"a unit in words", annotate(v1alpha1.AnnotationPodsUnit, "two")},
		{"a unit of a job that needs all pods", annotate(v1alpha1.AnnotationPodsUnit, "2")},
		{"a unit where the least is all", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "2")(j)
			annotate(v1alpha1.AnnotationPodsUnit, "2")(j)
		}},
		{"a unit that does not divide the job", inBlocks(6, 4, 4, 0)},
		{"a unit that does not divide the least", inBlocks(6, 3, 2, 0)},
		{"a unit that divides blocks", inBlocks(12, 6, 3, 2)},
		{"least pods under another scheduler", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "1")(j)
			podSpec(func(s *corev1.PodSpec) { s.SchedulerName = "volcano" })(j)
		}},
		{"least pods by hand", annotateTemplate(v1alpha1.AnnotationGangMin, "one")},
		{"a wait for pods without a unit", annotate(v1alpha1.AnnotationShrinkAfter, "30")},
		{"a wait for pods that are all needed", annotate(v1alpha1.AnnotationShrinkAfter, "30s")},
		{"sizes to try again of a job that needs all pods", annotate(v1alpha1.AnnotationRetrySizes, "1")},
		{"growing in words", annotate(v1alpha1.AnnotationGrow, "always")},
		{"growing of a job that needs all pods", annotate(v1alpha1.AnnotationGrow, "off")},
		{"a range that ends above the job", direct("--nnodes=1:3", "train.py")},
		{"mode of another kind", annotate(v1alpha1.AnnotationMode, "dry-run")},
		{"topology level in words", annotate(v1alpha1.AnnotationTopologyRequired, "one rack")},
		{"slice level empty", annotate(v1alpha1.AnnotationSliceLevel, "")},
		{"slice size zero", annotate(v1alpha1.AnnotationSliceSize, "0")},
		{"slices that do not divide the job", annotate(v1alpha1.AnnotationSliceSize, "3")},
		{"blocks that do not divide the job", annotateTemplate(v1alpha1.AnnotationBlockSize, "3")},
		{"slices that part blocks", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationSliceSize, "2")(j)
			annotate(v1alpha1.AnnotationBlockSize, "4")(j)
		}},
		{"slices of another shape", annotate(v1alpha1.AnnotationSliceShape, "any")},
		{"a shape without slices", annotate(v1alpha1.AnnotationSliceShape, "uneven")},
		{"slices of the level that is required", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationTopologyRequired, "rack")(j)
			annotate(v1alpha1.AnnotationSliceLevel, "rack")(j)
		}},
		{"spares below zero", annotate(v1alpha1.AnnotationSpares, "-1")},
		{"whole nodes maybe", annotate(v1alpha1.AnnotationWholeNodes, "yes")},
		{"a run time without a unit", annotate(v1alpha1.AnnotationRunTime, "36")},
		{"a port of the system", annotate(v1alpha1.AnnotationMasterPort, "80")},
		{"a port that is none", annotate(v1alpha1.AnnotationMasterPort, "65536")},
		{"ports the wrong way round", annotate(v1alpha1.AnnotationMasterPort, "29531-29500")},
		{"topology domain by hand", annotate(v1alpha1.AnnotationTopologyDomain, "rack=r1")},
		{"volume named as that of storage", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationStorageClaim, "ckpt")(j)
			podSpec(func(s *corev1.PodSpec) { s.Volumes = append(s.Volumes, corev1.Volume{Name: volumeStorage}) })(j)
		}},
		{"replaced by hand", label(v1alpha1.LabelReplaced, "true")},
		{"container unknown", annotate(v1alpha1.AnnotationContainer, "train")},
		{"container empty", annotateTemplate(v1alpha1.AnnotationContainer, "")},
		{"gang label that names no job", podSpecMeta(func(m *metav1.ObjectMeta) { m.Labels = setKey(m.Labels, v1alpha1.LabelGang, "No_Job") })},
		{"gang label on the job", label(v1alpha1.LabelGang, "llama")},
		{"gang size that is none", annotateTemplate(v1alpha1.AnnotationGangSize, "5001")},
		{"image command that is none", annotateTemplate(v1alpha1.AnnotationImageCommand, `{"image":"x"}`)},
		{"gang size on the job", annotate(v1alpha1.AnnotationGangSize, "2")},
		{"slot on the template", annotateTemplate(v1alpha1.AnnotationGangSlot, "0")},
		{"role on the job", annotate(v1alpha1.AnnotationGangRole, "worker")},
		{"injected by hand", annotateTemplate(v1alpha1.AnnotationInjected, "v1:0")},
		{"not indexed", func(j *batchv1.Job) { j.Spec.CompletionMode = nil }},
		{"more completions than pods", func(j *batchv1.Job) { j.Spec.Completions = ptr.To[int32](8) }},
		{"no completions", func(j *batchv1.Job) { j.Spec.Completions = nil }},
		{"no pods", func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](0), ptr.To[int32](0) }},
		{"more pods than a gang can have", ofPods(v1alpha1.MaxMembers + 1)},
		{"more pods than can be watched", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMode, "observe")(j)
			ofPods(math.MaxInt32)(j)
		}},
		{"part of another kind", func(j *batchv1.Job) {
			j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "ray.io/v1", Kind: "RayJob", Name: "set", Controller: ptr.To(true)}}
		}},
		{"no command", trainer(func(c *corev1.Container) { c.Command = nil })},
		{"wrapped by hand", trainer(func(c *corev1.Container) { c.Command = []string{agentPath, "init", "--", "torchrun"} })},
		{"volume of our name", podSpec(func(s *corev1.PodSpec) { s.Volumes = append(s.Volumes, corev1.Volume{Name: volumeMemory}) })},
		{"init container of our name", podSpec(func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: installContainer}} })},
		{"mount at our path", trainer(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: "/run/holdfast/memory/"})
		})},
		{"shared memory where some is mounted", annotate(v1alpha1.AnnotationShmSize, "8Gi")},
		{"shared memory maybe", annotateTemplate(v1alpha1.AnnotationShmSize, "on")},
		{"volume named as that of shared memory", func(j *batchv1.Job) {
			withoutShm(j)
			podSpec(func(s *corev1.PodSpec) { s.Volumes = append(s.Volumes, corev1.Volume{Name: volumeShm}) })(j)
		}},
		{"variable of our name", variable("HOLDFAST_RANKS", "9")},
		{"variable out of bounds", variable("HOLDFAST_LAUNCHER_TIMEOUT_SECONDS", "864000")},
		{"variable with a unit", variable("HOLDFAST_LAUNCHER_TIMEOUT_SECONDS", "10m")},
		{"variable that is neither on nor off", variable("HOLDFAST_OVERLAP", "true")},
		{"variable that resolves to neither", variable("HOLDFAST_REGISTER", "$(LR)")},
		{"variable that names no program", variable("HOLDFAST_PYTHON", "")},
		{"wrapped by hand, behind another", trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"/vault/vault-env"}, append(slices.Clone(wrapper), "torchrun", "train.py")
		})},
		{"launcher flag that is unknown", direct("--nproc-per-node=2", "--hold-fast", "train.py")},
		{"a class, and another request", func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationProvisioningClass, "a.b")(j)
			annotateTemplate(v1alpha1.AnnotationConsumesRequest, "mine")(j)
		}},
		{"a class that is none", annotate(v1alpha1.AnnotationProvisioningClass, "best effort")},
		{"launcher flag that is refused", direct("--nproc-per-node=2", "--logs-specs=mine", "train.py")},
		{"launcher flag after a space", direct("--nproc-per-node", "2", "--logs-specs", "mine", "train.py")},
		{"launcher variable that is refused", func(j *batchv1.Job) {
			direct("train.py")(j)
			trainer(func(c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "PET_SIGNALS_TO_HANDLE", Value: "SIGUSR1"})
			})(j)
		}},
		{"launcher for more pods", direct("--nnodes=4", "train.py")},
		{"launcher for more pods, by a variable", func(j *batchv1.Job) {
			direct("--nnodes=$(NODES)", "train.py")(j)
			trainer(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: "NODES", Value: "4"}) })(j)
		}},
		{"deepspeed on each pod by itself", trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"deepspeed"}, []string{"--num_gpus=2", "train.py"}
		})},
		{"deepspeed in a shell, by pdsh", trainer(func(c *corev1.Container) {
			c.Args = []string{"cd /work && deepspeed --hostfile /h --launcher pdsh train.py"}
		})},
		{"launcher without a script", direct("--nproc-per-node=2")},
		{"launcher for more pods, one flag known later", direct("--node-rank=$(JOB_COMPLETION_INDEX)", "--nnodes=4", "train.py")},
		{"launcher for pods by a name that nobody sets", direct("--nnodes=$(NODSE)", "train.py")},
		{"launcher for pods by an escaped name", direct("--nnodes=$$(JOB_COMPLETION_INDEX)", "train.py")},
		{"an argument that grows", func(j *batchv1.Job) {
			direct("$(A)$(A)", "train.py")(j)
			trainer(func(c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "A", Value: strings.Repeat("a", 100<<10)})
			})(j)
		}},
		{"a variable that grows", trainer(func(c *corev1.Container) {
			c.Env = nil
			for i := range 40 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: fmt.Sprintf("xx$(V%d)$(V%d)", i-1, i-1)})
			}
		})},
		{"a command that grows", func(j *batchv1.Job) {
			direct(slices.Repeat([]string{"$(A)"}, 11)...)(j)
			trainer(func(c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "A", Value: strings.Repeat("a", 100<<10)})
			})(j)
		}},
		{"too many references", direct(strings.Repeat("$(A)", 20_000), "train.py")},
	}
	var b strings.Builder
	for _, c := range cases {
		out := createJob(t.Context(), job(t, c.change), Facts{})
		if len(out.Errors) == 0 {
			t.Errorf("%s: not refused", c.name)
		}
		b.WriteString("# " + c.name + "\n" + said(out))
	}
	golden.File(t, "testdata/refusals.txt", b.String())
}

// variable sets a variable of the training container.
func variable(name, value string) func(*batchv1.Job) {
	return trainer(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) })
}

// podSpecMeta changes the metadata of the Job's pod template.
func podSpecMeta(f func(*metav1.ObjectMeta)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { f(&j.Spec.Template.ObjectMeta) }
}

func TestJobsThatAreFine(t *testing.T) {
	direct := func(env []corev1.EnvVar, args ...string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) { c.Command, c.Args, c.Env = []string{"torchrun"}, args, env })
	}
	for name, change := range map[string]func(*batchv1.Job){
		"as is":                       func(*batchv1.Job) {},
		"opted out, settings kept":    annotate(v1alpha1.AnnotationEnabled, "false"),
		"torchrun itself":             direct(nil, "--nnodes=2", "--nproc-per-node=8", "train.py"),
		"python -m":                   trainer(func(c *corev1.Container) { c.Command = []string{"python3", "-m", "torch.distributed.run", "train.py"} }),
		"a plain program":             trainer(func(c *corev1.Container) { c.Command, c.Args = []string{"/train"}, []string{"--log-dir=/x"} }),
		"count known to the pod only": direct([]corev1.EnvVar{{Name: "N", ValueFrom: &corev1.EnvVarSource{}}}, "--nnodes=$(N)", "train.py"),
		"kubernetes' own index": trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"python3", "-m", "torch.distributed.run", "--node-rank=$(JOB_COMPLETION_INDEX)", "--nnodes=2"}, []string{"--nproc-per-node=2", "train.py"}
		}),
		"a count of a count known to the pod only": direct([]corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}, {Name: "N", Value: "$(A)0"}}, "--nnodes=$(N)", "train.py"),
		"a service's address":                      direct(nil, "--master-port=$(MASTER_SERVICE_PORT)", "train.py"),
		"a variable of ours":                       direct(nil, "--nproc-per-node=$(HOLDFAST_RANKS)", "train.py"),
		"deepspeed on all pods": trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"deepspeed", "--no_ssh", "--hostfile=/h", "--node_rank=$(JOB_COMPLETION_INDEX)", "train.py"}, nil
		}),
		"deepspeed with the hosts where it looks": trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"deepspeed", "train.py"}, nil
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: "/job/"})
		}),
		"deepspeed on one pod": func(j *batchv1.Job) {
			trainer(func(c *corev1.Container) { c.Command, c.Args = []string{"deepspeed", "train.py"}, nil })(j)
			j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](1), ptr.To[int32](1)
		},
		"deepspeed in one branch of a shell": trainer(func(c *corev1.Container) {
			c.Args = []string{"if true; then deepspeed --no_ssh --hostfile /h train.py; else deepspeed train.py; fi"}
		}),
		"variables from elsewhere": trainer(func(c *corev1.Container) {
			c.Command, c.Args, c.EnvFrom = []string{"torchrun"}, []string{"--nnodes=$(NODES)", "$(FLAGS)", "train.py"}, []corev1.EnvFromSource{{Prefix: "X"}}
		}),
		"variables of a shell": trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"bash", "-c"}, []string{"torchrun --nnodes=$NODES --node-rank=${RANK} --nproc-per-node=$(nproc) train.py"}
		}),
		"large, without references": trainer(func(c *corev1.Container) {
			c.Env = slices.Repeat([]corev1.EnvVar{{Name: "A", Value: strings.Repeat("a", 120<<10)}}, 12)
		}),
		"from a cron job": func(j *batchv1.Job) {
			j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "nightly", Controller: ptr.To(true)}}
		},
		"a name still to be generated": func(j *batchv1.Job) { j.Name, j.GenerateName = "", "llama-" },
		"storage":                      storage("ckpt"),
		"observed":                     annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve),
		"opted out, storage kept": func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationEnabled, "false")(j)
			delete(j.Annotations, v1alpha1.AnnotationStateSize)
			storage("ckpt")(j)
		},
		"volume named as storage, no storage": podSpec(func(s *corev1.PodSpec) { s.Volumes = append(s.Volumes, corev1.Volume{Name: volumeStorage}) }),
		"mount beside ours": trainer(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: "/run/holdfast-data"})
		}),
	} {
		if out := createJob(t.Context(), job(t, change), Facts{}); len(out.Errors) > 0 {
			t.Errorf("%s: refused: %v", name, out.Errors.ToAggregate())
		}
	}
}

// TestLeastPods: the least number of pods is stamped on the template, from the job's key or from the launcher's range, unless all
// are needed.
func TestLeastPods(t *testing.T) {
	launcher := func(nodes string) func(*batchv1.Job) {
		return trainer(func(c *corev1.Container) {
			c.Command, c.Args = []string{"torchrun"}, []string{"--nnodes=" + nodes, "train.py"}
		})
	}
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		want   string
	}{
		"a key":   {annotate(v1alpha1.AnnotationMinPods, "1"), "1"},
		"a range": {launcher("1:2"), "1"},
		"a variable": {trainer(func(c *corev1.Container) {
			c.Command, c.Args, c.Env = []string{"torchrun"}, []string{"t.py"}, []corev1.EnvVar{{Name: "PET_NNODES", Value: "1:2"}}
		}), "1"},
		"all":      {annotate(v1alpha1.AnnotationMinPods, "2"), ""},
		"no key":   {func(*batchv1.Job) {}, ""},
		"a number": {launcher("2"), ""},
		"a copy's": {annotateTemplate(v1alpha1.AnnotationGangMin, "1"), ""},
		"a key again": {func(j *batchv1.Job) {
			annotate(v1alpha1.AnnotationMinPods, "1")(j)
			annotateTemplate(v1alpha1.AnnotationGangMin, "2")(j)
		}, "1"},
	} {
		out := createJob(t.Context(), job(t, c.change), Facts{})
		if got := out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangMin]; got != c.want || len(out.Errors) > 0 {
			t.Errorf("%s: the template has the least number %q, want %q; %v", name, got, c.want, out.Errors.ToAggregate())
			continue
		}
		if admitted, ok := settings.AdmittedJob(out.Object); !ok || fmt.Sprint(admitted.Min) != cmp.Or(c.want, "0") {
			t.Errorf("%s: the admitted job has the least number %d, want %q", name, admitted.Min, c.want)
		}
	}
}

// inBlocks makes a job of so many pods that goes on with fewer, in blocks; 0: without the key.
func inBlocks(pods, least int32, unit, block int) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.Parallelism, j.Spec.Completions = &pods, &pods
		annotate(v1alpha1.AnnotationMinPods, fmt.Sprint(least))(j)
		if unit > 0 {
			annotate(v1alpha1.AnnotationPodsUnit, fmt.Sprint(unit))(j)
		}
		if block > 0 {
			annotate(v1alpha1.AnnotationBlockSize, fmt.Sprint(block))(j)
		}
	}
}

// TestBlocks: the number of pods of a block is stamped on the template, from the key or the size of blocks that are placed together.
func TestBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		want   string
	}{
		"a unit":                       {inBlocks(6, 4, 2, 0), "2"},
		"blocks that are placed so":    {inBlocks(6, 4, 0, 2), "2"},
		"two of these":                 {inBlocks(12, 4, 4, 2), "4"},
		"a unit of one":                {inBlocks(6, 4, 1, 0), ""},
		"a job that needs all":         {inBlocks(6, 6, 0, 2), ""},
		"no key":                       {inBlocks(6, 4, 0, 0), ""},
		"another one on a copied Job":  {func(j *batchv1.Job) { annotateTemplate(v1alpha1.AnnotationGangUnit, "3")(j); inBlocks(6, 4, 2, 0)(j) }, "2"},
		"one on a copied Job, without": {func(j *batchv1.Job) { annotateTemplate(v1alpha1.AnnotationGangUnit, "3")(j); inBlocks(6, 4, 0, 0)(j) }, ""},
	} {
		out := createJob(t.Context(), job(t, c.change), Facts{})
		if got := out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangUnit]; got != c.want || len(out.Errors) > 0 {
			t.Errorf("%s: the template has the unit %q, want %q; %v", name, got, c.want, out.Errors.ToAggregate())
			continue
		}
		if admitted, ok := settings.AdmittedJob(out.Object); !ok || fmt.Sprint(admitted.Unit) != cmp.Or(c.want, "0") {
			t.Errorf("%s: the admitted job has the unit %d, want %q", name, admitted.Unit, c.want)
		}
	}
}

func TestJobWithoutOurKeysOrOptedOutIsNotTouched(t *testing.T) {
	for name, change := range map[string]func(*batchv1.Job){
		"no keys":           func(j *batchv1.Job) { j.Annotations = map[string]string{"a": "b"} },
		"opted out":         annotate(v1alpha1.AnnotationEnabled, "false"),
		"template opts out": annotateTemplate(v1alpha1.AnnotationEnabled, "false"),
	} {
		in := job(t, change)
		out := createJob(t.Context(), in, Facts{})
		if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(in, out.Object) {
			t.Errorf("%s: touched: %s", name, said(out))
		}
	}
}

func TestJobAdmissionIsIdempotent(t *testing.T) {
	once := admitted(t, job(t))
	twice := createJob(t.Context(), once, Facts{})
	if len(twice.Errors) > 0 || !equality.Semantic.DeepEqual(once, twice.Object) {
		t.Fatalf("the second call changes the Job: %s\n%s", said(twice), asYAML(t, twice.Object))
	}
}

// TestPinsStayOffTheTemplate: pins are not written to the template, because pods would keep the pins of the time when they were created.
func TestPinsStayOffTheTemplate(t *testing.T) {
	got := admitted(
		t,
		job(
			t,
			annotate(v1alpha1.AnnotationStorageClaim, "ckpt"),
			annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3"),
			annotate(v1alpha1.AnnotationPinWish, "1"),
		),
	)
	if _, there := got.Spec.Template.Annotations[v1alpha1.AnnotationPinWish]; there {
		t.Errorf("the template has %v", got.Spec.Template.Annotations)
	}
	if _, there := got.Spec.Template.Annotations[v1alpha1.AnnotationPinnedCheckpoints]; there ||
		got.Annotations[v1alpha1.AnnotationPinnedCheckpoints] != "120@3" {
		t.Errorf("the template has %v", got.Spec.Template.Annotations)
	}
}

func TestTemplateWins(t *testing.T) {
	got := admitted(t, job(t, annotateTemplate(v1alpha1.AnnotationStateSize, "1Gi")))
	if size := got.Spec.Template.Annotations[v1alpha1.AnnotationStateSize]; size != "1Gi" {
		t.Errorf("the template's state size became %s", size)
	}
}

func TestJobUpdates(t *testing.T) {
	plain := func(j *batchv1.Job) { j.Annotations = nil }
	suspended := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
	stamped := admitted(t, job(t))
	changed := func(j *batchv1.Job, f ...func(*batchv1.Job)) *batchv1.Job {
		j = j.DeepCopy()
		for _, g := range f {
			g(j)
		}
		return j
	}
	observed := admitted(t, job(t, annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve)))
	waits := changed(observed, suspended)
	sized := func(j *batchv1.Job, n int32) *batchv1.Job {
		return changed(j, func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To(n) })
	}
	stores := admitted(t, job(t, annotate(v1alpha1.AnnotationStorageClaim, "ckpt")))
	fewer := admitted(t, job(t, annotate(v1alpha1.AnnotationMinPods, "1")))
	var b strings.Builder
	for _, c := range []struct {
		name     string
		old, now *batchv1.Job
	}{
		{"a running job is annotated", job(t, plain), job(t)},
		{"a running job is annotated badly", job(t, plain), job(t, annotate(v1alpha1.AnnotationStateSize, "40"))},
		{"a setting of a gang changes", stamped, changed(stamped, annotate(v1alpha1.AnnotationStateSize, "1Gi"))},
		{"a gang is opted out", stamped, changed(stamped, annotate(v1alpha1.AnnotationEnabled, "false"))},
		{"a gang grows", stamped, changed(stamped, func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](3), ptr.To[int32](3) })},
		{"an observed job grows", observed, sized(observed, v1alpha1.MaxMembers)},
		{"an observed job grows beyond a gang", observed, sized(observed, v1alpha1.MaxMembers+1)},
		{"an observed job begins, and grows beyond a gang", waits, sized(observed, v1alpha1.MaxMembers+1)},
		{"an observed job of more, from before the limit", sized(observed, v1alpha1.MaxMembers+2), sized(observed, v1alpha1.MaxMembers+1)},
		{"a step is pinned", stores, changed(stores, annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3, 180@4"), annotate(v1alpha1.AnnotationPinWish, "1"))},
		{"a wish without a number", stores, changed(stores, annotate(v1alpha1.AnnotationPinWish, "soon"))},
		{"a step is pinned, and a setting changes", stores, changed(stores, annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3"), annotate(v1alpha1.AnnotationRanks, "3"))},
		{"a step is pinned badly", stores, changed(stores, annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@0"))},
		{"a step of a job without storage is pinned", stamped, changed(stamped, annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3"))},
		{"a step is pinned of a job of which a pod was replaced", changed(stores, annotate(v1alpha1.AnnotationMadeRoom, "now")),
			changed(stores, annotate(v1alpha1.AnnotationMadeRoom, "now"), annotate(v1alpha1.AnnotationPinnedCheckpoints, "120@3"))},
		{"a job of which a pod was replaced is overwritten", changed(stamped, annotate(v1alpha1.AnnotationMadeRoom, "now")), stamped},
		{"no node check from now on", stamped, changed(stamped, annotate(v1alpha1.AnnotationNodeCheck, "off"))},
		{"a node check from now on", stamped, changed(stamped, annotate(v1alpha1.AnnotationNodeCheck, "always"))},
		{"sizes to try again of a job that needs all pods", stamped, changed(stamped, annotate(v1alpha1.AnnotationRetrySizes, "1"))},
		{"sizes to try again", fewer, changed(fewer, annotate(v1alpha1.AnnotationRetrySizes, "1"))},
		{"nothing of ours changes", stamped, changed(stamped, annotate("a", "b"))},
	} {
		out := changeJob(t.Context(), c.old, c.now, Facts{})
		if !equality.Semantic.DeepEqual(out.Object, c.now) {
			t.Errorf("%s: the Job was changed", c.name)
		}
		b.WriteString("# " + c.name + "\n" + said(out))
	}
	golden.File(t, "testdata/updates.txt", b.String())

	out := changeJob(t.Context(), job(t, plain, suspended), job(t, suspended), Facts{})
	if len(out.Errors) > 0 || out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangSize] != "2" {
		t.Errorf("a suspended Job that never ran is not opted in: %s", said(out))
	}
	was := admitted(t, job(t, suspended))
	grown := changed(was, func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](5), ptr.To[int32](5) })
	out = changeJob(t.Context(), was, grown, Facts{})
	if len(out.Errors) > 0 || out.Object.Spec.Template.Annotations[v1alpha1.AnnotationGangSize] != "5" {
		t.Errorf("a suspended Job that never ran does not grow: %s", said(out))
	}
}

// TestReplacementPolicy: if a Job names no replacement policy, the API server writes TerminatingOrFailed before it calls the webhook.
func TestReplacementPolicy(t *testing.T) {
	other := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed) }
	for name, c := range map[string]struct {
		change []func(*batchv1.Job)
		want   batchv1.PodReplacementPolicy
		warned bool
	}{
		"none":      {nil, batchv1.Failed, false},
		"defaulted": {[]func(*batchv1.Job){other}, batchv1.Failed, false},
		"failed":    {[]func(*batchv1.Job){func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed) }}, batchv1.Failed, false},
		"applied": {[]func(*batchv1.Job){other, annotate(corev1.LastAppliedConfigAnnotation, `{"spec":{"podReplacementPolicy":"TerminatingOrFailed"}}`)},
			batchv1.TerminatingOrFailed, true},
		"applied without it": {[]func(*batchv1.Job){other, annotate(corev1.LastAppliedConfigAnnotation, `{"spec":{}}`)}, batchv1.Failed, false},
		"applied by the server": {[]func(*batchv1.Job){other, func(j *batchv1.Job) {
			j.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply,
				FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:podReplacementPolicy":{}}}`)}}}
		}}, batchv1.TerminatingOrFailed, true},
	} {
		out := createJob(t.Context(), job(t, c.change...), Facts{})
		got := out.Object.Spec.PodReplacementPolicy
		if len(out.Errors) > 0 || got == nil || *got != c.want || strings.Contains(said(out), "backoffLimit") != c.warned {
			t.Errorf("%s: %v, %s", name, got, said(out))
		}
	}
	out := createJob(t.Context(), job(t, annotate(v1alpha1.AnnotationEnabled, "false")), Facts{})
	if out.Object.Spec.PodReplacementPolicy != nil {
		t.Error("a Job that is not opted in was changed")
	}
}

// TestCommandsRestartedWhole: a command that certainly starts its processes itself gets a warning. A command that may start a supported
// launcher gets none.
func TestCommandsRestartedWhole(t *testing.T) {
	python, itself := "starts Python without a launcher: unless the program starts one itself, each pod is one rank", " starts its processes itself, without holdfast"
	for line, want := range map[string]string{
		"python train.py": python, "/usr/bin/python3.12 -u train.py": python, "bash -lc python$(X)train.py": python, "python train.py --strategy deepspeed": python,
		"mpirun -n 8 train": "mpirun" + itself, "bash -c set|-e;exec|/opt/bin/horovodrun|-np|8|python|train.py": "horovodrun" + itself, "composer train.py": "composer" + itself,
		"torchrun train.py": "", "python -m torch.distributed.run train.py": "", "bash -c torchrun;python": "", "bash run.sh": "", "/app/run": "", "bash -c ./run.sh": "",
		"sh python.sh": "", "accelerate launch train.py": "", "python -m accelerate.commands.launch train.py": "", "bash -c accelerate|launch|python.py": "",
	} {
		argv := strings.Fields(line)
		argv[len(argv)-1] = strings.ReplaceAll(argv[len(argv)-1], "|", " ")
		out := createJob(t.Context(), job(t, trainer(func(c *corev1.Container) { c.Command, c.Args = argv, nil })), Facts{})
		if len(out.Errors) > 0 {
			t.Errorf("%s: %v", line, out.Errors)
		}
		if got := strings.Contains(said(out), "restarted as a whole"); got != (want != "") || !strings.Contains(said(out), want) {
			t.Errorf("%s:\n%s", line, said(out))
		}
	}
}

func ofPods(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To(n), ptr.To(n) }
}

// TestGangsOfANamespaceAreBounded: in a namespace that is full a Job that opts in, also one that is only observed, is refused. Other Jobs
// are not.
func TestGangsOfANamespaceAreBounded(t *testing.T) {
	plain := func(j *batchv1.Job) { j.Annotations = map[string]string{"a": "b"} }
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		facts  Facts
		want   bool
	}{
		"room":     {nil, Facts{Gangs: 2, MaxGangs: 3}, false},
		"full":     {nil, Facts{Gangs: 3, MaxGangs: 3}, true},
		"observed": {annotate(v1alpha1.AnnotationMode, v1alpha1.ModeObserve), Facts{Gangs: 3, MaxGangs: 3}, true},
		"no limit": {nil, Facts{Gangs: 3}, false},
		"not ours": {plain, Facts{Gangs: 3, MaxGangs: 3}, false},
	} {
		var changes []func(*batchv1.Job)
		if c.change != nil {
			changes = append(changes, c.change)
		}
		text := said(createJob(t.Context(), job(t, changes...), c.facts))
		if got := strings.Contains(text, "metadata.namespace: Forbidden: the namespace has 3 gangs and may have 3: delete Jobs that are over"); got != c.want {
			t.Errorf("%s: %s", name, text)
		}
	}
}
