package elastic

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

const (
	namespace, shared = "elastic", "shared"
	pods, perPod      = 3, 2
	// control is on the nodes that the control plane may run on: the third one dies.
	control = "elastic.test/control"
	line    = "torchrun --nnodes=%d --nproc-per-node=%d --master-addr=none --master-port=29500 /trainer/%s /" + shared + "/%s 3000 0.3"
)

// overlay keeps the control plane off the nodes that die.
const overlay = `
resources: [%s]
patches:
- target: {kind: Deployment}
  patch: '[{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"` + control + `": "true"}}]'
`

// world is a cluster, and the job that a test plays there.
type world struct {
	*harness.Cluster
	job string
	// cuts are the nodes that are cut off.
	cuts []*devcluster.Node
}

func TestElastic(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: real kubelets need Linux and root")
	}
	t.Parallel()
	ctx := t.Context()
	w := start(ctx, t)
	defer func() {
		if t.Failed() {
			w.dump(context.Background())
		}
	}()
	if err := w.Client().Create(ctx, w.trainer(w.command("torch_trainer.py"))); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))

	lost := w.Nodes()[2]
	if err := lost.Cut(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fewer := w.until(ctx, t, "goes on with fewer", trains(2, pods-1, 3))
	w.Say("%s is cut off: trains with %d ranks after %.1f s", lost.Name, fewer.Progress.Ranks, time.Since(began).Seconds())
	if fewer.RestoreStep < 5 {
		t.Errorf("goes on from step %d, and all ranks held 5", fewer.RestoreStep)
	}
	w.says(ctx, t, v1alpha1.ReasonRunsWithFewer, "goes on with 2 of 3 pods: no node for slot")

	if err := lost.Mend(ctx); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	all := w.until(ctx, t, "takes the pod in again", trains(fewer.Generation+1, pods, 3))
	w.Say("%s is back: trains with %d ranks after %.1f s", lost.Name, all.Progress.Ranks, time.Since(began).Seconds())
	again := all.Recoveries[len(all.Recoveries)-1]
	if n := again.StepsRecomputed; again.Cause.Code != v1alpha1.CauseGangGrows || n == nil || *n != 0 {
		t.Errorf("the recovery is %s with %v steps again: %s", again.Cause.Code, n, again.Cause.Message)
	}

	if err := lost.Cut(ctx); err != nil {
		t.Fatal(err)
	}
	w.until(ctx, t, "goes on with fewer again", trains(all.Generation+1, pods-1, 1))
	w.finish(ctx, t)
	if err := lost.Mend(ctx); err != nil {
		t.Error(err)
	}
}

func start(ctx context.Context, t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: harness.Start(t, devcluster.Options{Name: "elastic", Nodes: pods, Replace: true}), job: "ddp"}
	w.install(ctx, t, overlay, w.Nodes()[:pods-1], harness.TrainerRoom(namespace))
	return w
}

// install installs Holdfast with the control plane on some nodes, and creates what jobs need.
func (w *world) install(ctx context.Context, t *testing.T, overlay string, controls []*devcluster.Node, room []client.Object) {
	t.Helper()
	for _, n := range controls {
		if out, err := w.RunKubectl(ctx, "label", "node", n.Name, control+"=true"); err != nil {
			t.Fatal(out, err)
		}
	}
	if err := w.LoadImages(ctx); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := w.Overlay(dir, overlay); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(ctx, dir); err != nil {
		w.dump(ctx)
		t.Fatal(err)
	}
	for _, o := range room {
		if err := w.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
}

// command is the command of torch_trainer.py, or of a script that runs it.
func (w *world) command(script string) []string {
	return []string{"bash", "-c", "PATH=$PATH:/opt/holdfast-python/venv/bin exec " + fmt.Sprintf(line, pods, perPod, script, w.job)}
}

// trainer is a job with a pod for each node, with two ranks, and a minimum of one pod.
func (w *world) trainer(command []string) *batchv1.Job {
	spec := harness.TrainerPod("", 5, perPod)
	spec.Containers[0].Command = command
	resources := &spec.Containers[0].Resources
	resources.Limits[corev1.ResourceMemory] = resource.MustParse("1536Mi")
	resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	spec.Volumes = append(spec.Volumes, harness.ClaimVolume(shared, false))
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	return harness.Job(namespace, w.job, pods, 0, map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationStandbys: "off",
		v1alpha1.AnnotationMinPods: "1",
	}, spec)
}

// trains holds once a gang runs this generation or a later one with so many pods, and has made more steps in it.
func trains(generation int64, with int, more int64) func(*v1alpha1.Gang) bool {
	return func(g *v1alpha1.Gang) bool {
		r := g.Status.Run
		return r != nil && g.Status.Phase == v1alpha1.PhaseRunning && r.Generation >= generation && pods-len(r.Out) == with &&
			int(r.Progress.Ranks) == with*perPod && r.Progress.Step >= r.RestoreStep+more
	}
}

// until waits until the Gang is as wanted, and returns its record.
func (w *world) until(ctx context.Context, t *testing.T, what string, holds func(*v1alpha1.Gang) bool) v1alpha1.RunStatus {
	t.Helper()
	run := v1alpha1.RunStatus{}
	err := w.Until(ctx, what, eventually.Timeout, func(ctx context.Context) (bool, string) {
		g, err := w.Gang(ctx, namespace, w.job)
		if err != nil {
			return false, err.Error()
		}
		if g.Status.Run != nil {
			run = *g.Status.Run
		}
		return holds(g), fmt.Sprintf("%s %s, generation %d %s without %v, %d ranks, step %d after %d: %s", g.Status.Phase, g.Status.Nodes,
			run.Generation, run.State, run.Out, run.Progress.Ranks, run.Progress.Step, run.RestoreStep, harness.Says(g))
	})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// says checks the reason and the text of condition Running.
func (w *world) says(ctx context.Context, t *testing.T, reason, text string) {
	t.Helper()
	g, err := w.Gang(ctx, namespace, w.job)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(g.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionRunning })
	if i < 0 || g.Status.Conditions[i].Reason != reason || !strings.Contains(g.Status.Conditions[i].Message, text) {
		t.Errorf("condition Running is not %s with %q: %+v", reason, text, g.Status.Conditions)
	}
}

// finish lets the script end, and waits until the Job is complete.
func (w *world) finish(ctx context.Context, t *testing.T) {
	t.Helper()
	folder, err := w.SharedPath(ctx, namespace, shared)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, w.job+".go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.completes(ctx, t)
}

// completes waits until the Job is complete.
func (w *world) completes(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := w.Until(ctx, "the Job is complete", eventually.Timeout, func(ctx context.Context) (bool, string) {
		j := &batchv1.Job{}
		if err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: w.job}, j); err != nil {
			return false, err.Error()
		}
		return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		}), fmt.Sprintf("%+v", j.Status)
	}); err != nil {
		t.Fatal(err)
	}
}

// dump prints the state of the job and the nodes.
func (w *world) dump(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "gangs,jobs", "-n", namespace, "-o", "yaml"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
		{"logs", "-n", namespace, "-l", v1alpha1.LabelGang, "--tail=40", "--prefix"},
		{"logs", "-n", v1alpha1.Namespace, "-l", "app.kubernetes.io/name=holdfast-controller", "--tail=60", "--prefix", "--all-containers"},
	} {
		out, err := w.RunKubectl(ctx, args...)
		w.Say("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
