package upgrade

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

const namespace, job, container = "upgrade", "llama", "trainer"

// saved and done are events of ranks: a step is in memory, a step is made.
const saved, done = "saved", "done"

// world is a cluster with one job, whose ranks write their events to a folder that this machine can read.
type world struct {
	*testing.T
	old, today *harness.Cluster
	log        string
	// expected pods: name of the slot to uid
	pods map[string]string
	// generation is the running one.
	generation int
}

// TestUpgrade needs the source tree of an earlier version with its binaries, in HOLDFAST_UPGRADE_FROM.
func TestUpgrade(t *testing.T) {
	from := os.Getenv("HOLDFAST_UPGRADE_FROM")
	if from == "" {
		t.Fatal("HOLDFAST_UPGRADE_FROM names no source tree: run make test-upgrade")
	}
	ctx := context.Background()
	today := harness.Start(t, devcluster.Options{Name: "upgrade", Nodes: 2})
	old := *today
	old.Source = from
	w := &world{T: t, old: &old, today: today, pods: map[string]string{}, generation: 1}
	if err := w.old.Install(ctx); err != nil {
		t.Fatal(err)
	}
	w.start(ctx)

	w.controlPlane(ctx, w.today, "today's control plane, agents of old")
	w.failure(ctx)
	w.replacement(ctx, 1, "today's control plane, agents of both")
	w.failure(ctx)
	w.controlPlane(ctx, w.old, "the old control plane again, agents of both")
	w.failure(ctx)
	w.agents(ctx, w.today)
	w.replacement(ctx, 0, "the old control plane, today's agents")
	w.failure(ctx)
	w.controlPlane(ctx, w.today, "today's control plane and agents")
	w.failure(ctx)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// start creates the job and waits until it trains.
func (w *world) start(ctx context.Context) {
	w.Helper()
	for _, o := range append(harness.TrainerRoom(namespace), training()) {
		w.must(w.today.Client().Create(ctx, o))
	}
	w.today.Say("the old version trains")
	w.until("the pods run", func() (bool, any) {
		pods, err := w.today.Pods(ctx, namespace, job)
		for _, p := range pods {
			w.pods[p.Annotations[batchv1.JobCompletionIndexAnnotation]] = string(p.UID)
		}
		return err == nil && len(w.pods) == 2, err
	})
	w.until("the folder is bound", func() (bool, any) {
		path, err := w.today.SharedPath(ctx, namespace, "shared")
		w.log = filepath.Join(path, "log")
		return err == nil, err
	})
	w.trains(ctx)
}

// training is a job of two pods with a rank each, which keeps its state in memory and in storage.
func training() *batchv1.Job {
	const line = "torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX --master-addr=none --master-port=29500 " +
		"--no-python /opt/holdfast-python/venv/bin/python3 -u /trainer/trainer.py 0.2 65536 /shared/log"
	pod := harness.TrainerPod(line, 10, 1)
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "shared", MountPath: "/shared"})
	pod.Volumes = append(pod.Volumes, harness.ClaimVolume("shared", false))
	return harness.Job(namespace, job, 2, 0, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi",
		v1alpha1.AnnotationStandbys: "off", v1alpha1.AnnotationStorageClaim: "shared", v1alpha1.AnnotationStorageInterval: "1s"}, pod)
}

func (w *world) until(what string, holds func() (bool, any)) {
	w.Helper()
	eventually.Holds(w.T, what, holds)
}

// steps has the ranks' events: where each rank of a generation started, and each rank's newest step that was saved, or done.
func (w *world) steps(generation int, event string) (starts map[int]int, newest [2]int) {
	w.Helper()
	raw, _ := os.ReadFile(w.log)
	starts = map[int]int{}
	for line := range strings.Lines(string(raw)) {
		var g, rank, step int
		var word string
		if n, _ := fmt.Sscan(line, &g, &rank, &word, &step); n != 4 || !strings.HasSuffix(line, "\n") || rank > 1 {
			continue
		}
		switch {
		case word == "torn":
			w.Fatalf("rank %d restored a state of step %d that is not whole", rank, step)
		case word == "start" && g == generation:
			starts[rank] = step
		case word == event:
			newest[rank] = max(newest[rank], step)
		}
	}
	return starts, newest
}

// trains waits until both ranks of the expected generation have saved five more steps, and checks that pods, containers and generation are
// unchanged.
func (w *world) trains(ctx context.Context) {
	w.Helper()
	w.advances(ctx, saved)
}

// advances is trains for steps that are saved or done.
func (w *world) advances(ctx context.Context, event string) {
	w.Helper()
	var from [2]int
	first := true
	w.until(fmt.Sprintf("generation %d trains", w.generation), func() (bool, any) {
		starts, newest := w.steps(w.generation, event)
		if len(starts) < 2 {
			return false, w.said(ctx)
		}
		if first {
			from, first = newest, false
		}
		return newest[0] >= from[0]+5 && newest[1] >= from[1]+5, newest
	})
	if starts, _ := w.steps(w.generation+1, event); len(starts) > 0 {
		w.Fatalf("generation %d has come: %s", w.generation+1, w.said(ctx))
	}
	pods, err := w.today.Pods(ctx, namespace, job)
	w.must(err)
	for _, p := range pods {
		slot := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if w.pods[slot] != string(p.UID) && p.DeletionTimestamp == nil {
			w.Errorf("slot %s has another pod", slot)
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				w.Errorf("container %s of pod %s was started again", s.Name, p.Name)
			}
		}
	}
}

// said is the output for a failed test.
func (w *world) said(ctx context.Context) string {
	out, err := w.today.Explain(ctx, namespace, job)
	return fmt.Sprint(out, err)
}

// controlPlane installs a version's control plane while the job trains on.
func (w *world) controlPlane(ctx context.Context, c *harness.Cluster, what string) {
	w.Helper()
	w.today.Say("%s", what)
	w.must(c.LoadImagesInto(ctx, c.Nodes(), harness.ControlPlane...))
	w.agents(ctx, c)
	_, err := c.RunKubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(c.Source, "manifests"))
	w.must(err)
	_, err = c.RunKubectl(ctx, "rollout", "restart", "deployment", "-n", v1alpha1.Namespace)
	w.must(err)
	w.must(c.Serves(ctx))
	w.trains(ctx)
}

// agents makes new pods use a version's agent.
func (w *world) agents(ctx context.Context, c *harness.Cluster) {
	w.Helper()
	w.must(c.LoadImagesInto(ctx, c.Nodes(), "holdfast-agent"))
}

// failure kills a rank. The next generation resumes from the newest step of both ranks, in the same pods.
func (w *world) failure(ctx context.Context) {
	w.Helper()
	pods, err := w.today.Pods(ctx, namespace, job)
	w.must(err)
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && p.Annotations[batchv1.JobCompletionIndexAnnotation] == "1"
	})
	if at < 0 {
		w.Fatal("slot 1 has no pod")
	}
	_, newest := w.steps(w.generation, saved)
	w.must(w.today.Signal(ctx, namespace, pods[at].Name, container, syscall.SIGKILL, func(p harness.Process) bool {
		return slices.Contains(p.Args, "/trainer/trainer.py") && !strings.Contains(strings.Join(p.Args, " "), "torchrun")
	}))
	w.next(ctx, min(newest[0], newest[1]))
}

// next expects a generation that starts from step `least` or later.
func (w *world) next(ctx context.Context, least int) {
	w.Helper()
	w.generation++
	w.trains(ctx)
	starts, _ := w.steps(w.generation, saved)
	if starts[0] != starts[1] || starts[0] < least {
		w.Errorf("generation %d starts after steps %v; %d were done by all", w.generation, starts, least)
	}
}

// replacement deletes a pod. Another pod, with the agent that the nodes have now, replaces it, and no stored step is lost.
func (w *world) replacement(ctx context.Context, slot int, what string) {
	w.Helper()
	w.today.Say("%s", what)
	index := fmt.Sprint(slot)
	pods, err := w.today.Pods(ctx, namespace, job)
	w.must(err)
	_, newest := w.steps(w.generation, saved)
	for _, p := range pods {
		if string(p.UID) == w.pods[index] {
			w.must(w.today.Kube().CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
		}
	}
	before := w.pods[index]
	w.until("slot "+index+" has another pod", func() (bool, any) {
		pods, err := w.today.Pods(ctx, namespace, job)
		for _, p := range pods {
			if p.Annotations[batchv1.JobCompletionIndexAnnotation] == index && string(p.UID) != before && p.DeletionTimestamp == nil {
				w.pods[index] = string(p.UID)
			}
		}
		return w.pods[index] != before, err
	})
	w.next(ctx, min(newest[0], newest[1])) // a deleted pod first copies its last step
}
