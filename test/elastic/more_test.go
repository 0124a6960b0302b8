package elastic

import (
	"context"
	"embed"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

//go:embed *.py
var scripts embed.FS

// TestMore plays further cases, one after the other, on nodes of which each may be lost: the control plane is on a node without them.
func TestMore(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: real kubelets need Linux and root")
	}
	w := startMore(t.Context(), t)
	for name, play := range map[string]func(context.Context, *testing.T, *world){
		"leaders": losesLeaders, "first": losesFirst, "snapshot": ownSnapshot, "whole": dividedState, "fixed": oneSize, "flaps": flaps,
		"blocks": wholeBlocks, "kueue": besideKueue, "example": upstreamExample,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, w := t.Context(), &world{Cluster: w.Cluster, job: name}
			defer func() {
				if t.Failed() {
					w.dump(context.Background())
				}
				w.restore(context.Background(), t)
			}()
			play(ctx, t, w)
		})
	}
}

// severalLost is overlay without a limit of nodes that may be given up at a time.
const severalLost = overlay + `
- target: {kind: Deployment, name: holdfast-controller}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --nodes-max-out=100%%}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --nodes-breaker=100%%}
`

func startMore(ctx context.Context, t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: harness.Start(t, devcluster.Options{Name: "elastic", Nodes: pods + 1, Replace: true})}
	for _, n := range w.losable() {
		if out, err := w.RunKubectl(ctx, "label", "node", n.Name, losable+"=true"); err != nil {
			t.Fatal(out, err)
		}
	}
	files := map[string]string{}
	for _, name := range []string{"snapshot.py", "whole.py", "fixed.py"} {
		text, err := scripts.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	more := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more"}, Data: files}
	w.install(ctx, t, severalLost, w.Nodes()[:1], append(harness.TrainerRoom(namespace), more))
	return w
}

// losable is the label of the nodes that jobs may use.
const losable = "elastic.test/losable"

// losable are the nodes without the control plane.
func (w *world) losable() []*devcluster.Node { return w.Nodes()[1:] }

// more is a job on the nodes that may be lost. Its command finds the further scripts in /more.
func (w *world) more(command []string) *batchv1.Job {
	j := w.trainer(command)
	spec := &j.Spec.Template.Spec
	spec.NodeSelector = map[string]string{losable: "true"}
	spec.Volumes = append(spec.Volumes, harness.ConfigVolume("more"))
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "more", MountPath: "/more"})
	return j
}

func (w *world) create(ctx context.Context, t *testing.T, j *batchv1.Job) {
	t.Helper()
	if err := w.Client().Create(ctx, j); err != nil {
		t.Fatal(err)
	}
}

// restore mends all nodes, deletes the job, and waits until all nodes take pods.
func (w *world) restore(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, n := range slices.Clone(w.cuts) {
		w.mend(ctx, t, n)
	}
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: w.job}}
	if err := w.Client().Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	for _, n := range w.losable() {
		if err := w.Well(ctx, n.Name); err != nil {
			t.Error(err)
		}
	}
	if err := w.Until(ctx, "the pods are gone", eventually.Timeout, func(ctx context.Context) (bool, string) {
		all, err := w.Pods(ctx, namespace, w.job)
		return err == nil && len(all) == 0, fmt.Sprint(len(all), err)
	}); err != nil {
		t.Error(err)
	}
}

// nodeOf is the node of a slot's pod.
func (w *world) nodeOf(ctx context.Context, t *testing.T, slot int) *devcluster.Node {
	t.Helper()
	members, _, err := w.Members(ctx, namespace, w.job)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(p corev1.Pod) bool {
		return p.Labels[batchv1.JobCompletionIndexAnnotation] == fmt.Sprint(slot) && p.Spec.NodeName != ""
	})
	if i < 0 {
		t.Fatalf("no pod of slot %d among %d", slot, len(members))
	}
	return w.Node(members[i].Spec.NodeName)
}

func (w *world) cut(ctx context.Context, t *testing.T, n *devcluster.Node) {
	t.Helper()
	if err := n.Cut(ctx); err != nil {
		t.Fatal(err)
	}
	w.cuts = append(w.cuts, n)
}

func (w *world) mend(ctx context.Context, t *testing.T, n *devcluster.Node) {
	t.Helper()
	if err := n.Mend(ctx); err != nil {
		t.Error(err)
	}
	w.cuts = slices.DeleteFunc(w.cuts, func(c *devcluster.Node) bool { return c == n })
}

// grew checks that the newest recovery is a growth that did no step again.
func grew(t *testing.T, r v1alpha1.RunStatus) {
	t.Helper()
	last := r.Recoveries[len(r.Recoveries)-1]
	if n := last.StepsRecomputed; last.Cause.Code != v1alpha1.CauseGangGrows || n == nil || *n != 0 {
		t.Errorf("the recovery is %s with %v steps again: %s", last.Cause.Code, n, last.Cause.Message)
	}
}

// losesFirst loses the node of rank 0, and then all nodes but one.
func losesFirst(ctx context.Context, t *testing.T, w *world) {
	w.create(ctx, t, w.more(w.command("torch_trainer.py")))
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	first, second := w.nodeOf(ctx, t, 0), w.nodeOf(ctx, t, 1)
	w.cut(ctx, t, first)
	two := w.until(ctx, t, "goes on without rank 0", trains(2, 2, 3))
	if two.RestoreStep < 5 || !slices.Equal(two.Out, []int32{0}) {
		t.Errorf("goes on from step %d without slots %v", two.RestoreStep, two.Out)
	}
	w.cut(ctx, t, second)
	one := w.until(ctx, t, "goes on with one pod", trains(two.Generation+1, 1, 3))
	if one.RestoreStep < two.RestoreStep+3 {
		t.Errorf("goes on from step %d, and the ranks held %d", one.RestoreStep, two.RestoreStep+3)
	}
	w.mend(ctx, t, first)
	w.mend(ctx, t, second)
	more := w.until(ctx, t, "takes pods in again", func(g *v1alpha1.Gang) bool {
		return trains(one.Generation+1, 2, 3)(g) || trains(one.Generation+1, pods, 3)(g)
	})
	w.Say("both nodes are back: trains with %d ranks", more.Progress.Ranks)
	grew(t, more)
}

// losesLeaders kills the leading controller and scheduler while the job goes on with fewer, and while it takes a pod in.
func losesLeaders(ctx context.Context, t *testing.T, w *world) {
	w.create(ctx, t, w.more(w.command("torch_trainer.py")))
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	lost := w.nodeOf(ctx, t, 1)
	w.cut(ctx, t, lost)
	w.until(ctx, t, "the ranks have stopped", func(g *v1alpha1.Gang) bool { return g.Status.Phase != v1alpha1.PhaseRunning })
	w.killLeaders(ctx, t)
	fewer := w.until(ctx, t, "goes on with fewer", trains(2, 2, 3))
	if fewer.RestoreStep < 5 {
		t.Errorf("goes on from step %d, and all ranks held 5", fewer.RestoreStep)
	}
	w.mend(ctx, t, lost)
	if err := w.Until(ctx, "the pod has a node again", eventually.Timeout, func(ctx context.Context) (bool, string) {
		members, _, err := w.Members(ctx, namespace, w.job)
		placed := slices.DeleteFunc(members, func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
		return len(placed) == pods, fmt.Sprint(len(placed), err)
	}); err != nil {
		t.Fatal(err)
	}
	w.killLeaders(ctx, t)
	all := w.until(ctx, t, "takes the pod in again", trains(fewer.Generation+1, pods, 3))
	grew(t, all)
}

// killLeaders kills the leading controller and scheduler.
func (w *world) killLeaders(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, name := range harness.ControlPlane {
		p, err := w.Leader(ctx, name)
		if err != nil || p == nil {
			t.Fatalf("no pod leads %s: %v", name, err)
		}
		if _, err := w.Kill(ctx, v1alpha1.Namespace, p.Name, p.Spec.Containers[0].Name, func(p harness.Process) bool {
			return len(p.Args) > 0 && filepath.Base(p.Args[0]) == name
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// ownSnapshot is a script without the client, whose command alone has the minimum. Its own snapshot serves a larger number of ranks.
func ownSnapshot(ctx context.Context, t *testing.T, w *world) {
	const torchrun = "/opt/holdfast-python/venv/bin/torchrun"
	folder := "/" + shared + "/" + w.job
	j := w.more([]string{torchrun, fmt.Sprintf("--nnodes=1:%d", pods), fmt.Sprintf("--nproc-per-node=%d", perPod), "/more/snapshot.py", folder})
	delete(j.Annotations, v1alpha1.AnnotationMinPods)
	delete(j.Annotations, v1alpha1.AnnotationStateSize)
	j.Annotations[v1alpha1.AnnotationGrow] = v1alpha1.GrowWithRestart
	w.create(ctx, t, j)
	w.epochs(ctx, t, pods*perPod, 3)
	lost := w.nodeOf(ctx, t, 2)
	w.cut(ctx, t, lost)
	w.epochs(ctx, t, 2*perPod, 3)
	w.mend(ctx, t, lost)
	w.epochs(ctx, t, pods*perPod, 3)
	host, err := w.SharedPath(ctx, namespace, shared)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, w.job, "end"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.completes(ctx, t)
}

// epochs waits until the newest epochs of snapshot.py were made by so many ranks, and continue those before.
func (w *world) epochs(ctx context.Context, t *testing.T, ranks, least int) {
	t.Helper()
	host, err := w.SharedPath(ctx, namespace, shared)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := w.Until(ctx, fmt.Sprintf("epochs of %d ranks", ranks), 2*eventually.Timeout, func(context.Context) (bool, string) {
		text, err := os.ReadFile(filepath.Join(host, w.job, "epochs"))
		if err != nil {
			return false, err.Error()
		}
		made, reached := 0, 0
		for l := range strings.Lines(string(text)) {
			var from, epoch, world int
			if _, err := fmt.Sscan(l, &from, &epoch, &world); err != nil {
				continue
			}
			if from > reached || epoch <= reached-1 {
				t.Errorf("an epoch %d from %d after %d", epoch, from, reached)
			}
			if made++; world != ranks {
				made = 0
			}
			reached = epoch
		}
		return made >= least, fmt.Sprintf("%d of them, epoch %d", made, reached)
	}); err != nil {
		t.Fatal(err)
	}
	w.Say("%s: epochs of %d ranks after %.1f s", w.job, ranks, time.Since(began).Seconds())
}

// dividedState is divided over all ranks: the gang waits for all pods, and says why.
func dividedState(ctx context.Context, t *testing.T, w *world) {
	w.create(ctx, t, w.more([]string{"bash", "-c", fmt.Sprintf("PATH=$PATH:/opt/holdfast-python/venv/bin exec torchrun --nnodes=%d "+
		"--nproc-per-node=%d --master-addr=none --master-port=29500 /more/whole.py", pods, perPod)}))
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	lost := w.nodeOf(ctx, t, 1)
	w.cut(ctx, t, lost)
	w.until(ctx, t, "waits with its reason", func(g *v1alpha1.Gang) bool {
		return g.Status.Phase != v1alpha1.PhaseRunning && strings.Contains(harness.Says(g), "the state is divided over all ranks")
	})
	w.stays(ctx, t, 1)
	w.mend(ctx, t, lost)
	w.until(ctx, t, "all ranks train again", trains(2, pods, 3))
}

// oneSize is a script that asserts its number of ranks: the gang waits for all pods, and the job does not fail.
func oneSize(ctx context.Context, t *testing.T, w *world) {
	command := w.command("torch_trainer.py")
	command[2] = strings.Replace(command[2], "/trainer/", "/more/fixed.py /trainer/", 1)
	w.create(ctx, t, w.more(command))
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	lost := w.nodeOf(ctx, t, 1)
	w.cut(ctx, t, lost)
	tried, since := int64(0), time.Time{} // each smaller number of pods is tried once
	waits := w.until(ctx, t, "waits with its reason for a while", func(g *v1alpha1.Gang) bool {
		switch waiting := g.Status.Phase != v1alpha1.PhaseRunning && strings.Contains(harness.Says(g), "needs 6 ranks"); {
		case !waiting:
			since = time.Time{}
		case since.IsZero() || g.Status.Run.Generation != tried:
			tried, since = g.Status.Run.Generation, time.Now()
		}
		return !since.IsZero() && time.Since(since) > 20*time.Second
	})
	w.mend(ctx, t, lost)
	all := w.until(ctx, t, "all ranks train again", trains(waits.Generation+1, pods, 3))
	if all.RestoreStep < 5 {
		t.Errorf("goes on from step %d, and all ranks held 5", all.RestoreStep)
	}
}

// stays checks that for a while no generation begins and the job does not fail.
func (w *world) stays(ctx context.Context, t *testing.T, generation int64) {
	t.Helper()
	reads := 0
	if err := w.During(ctx, "the gang waits", 30*time.Second, func(ctx context.Context) (bool, string) {
		g, err := w.Gang(ctx, namespace, w.job)
		if err != nil {
			return true, "" // a read that failed
		}
		reads++
		return g.Status.Run.Generation == generation && g.Status.Phase != v1alpha1.PhaseFailed,
			fmt.Sprintf("%s, generation %d: %s", g.Status.Phase, g.Status.Run.Generation, harness.Says(g))
	}); err != nil {
		t.Error(err)
	}
	if reads == 0 {
		t.Error("no read of the Gang succeeded")
	}
}

// flaps has a node that is lost and comes back every 20 s. The ranks are not halted for it each time.
func flaps(ctx context.Context, t *testing.T, w *world) {
	w.create(ctx, t, w.more(w.command("torch_trainer.py")))
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	const slot = 1
	lost := w.nodeOf(ctx, t, slot)
	for range 4 {
		w.cut(ctx, t, lost)
		pause(ctx, 20*time.Second)
		w.mend(ctx, t, lost)
		pause(ctx, 20*time.Second)
	}
	now := w.until(ctx, t, "trains on", func(g *v1alpha1.Gang) bool { return trains(1, 2, 3)(g) || trains(1, pods, 3)(g) })
	causes := []string{}
	growths, losses := 0, 0
	for _, r := range now.Recoveries {
		causes = append(causes, r.Cause.Code)
		switch {
		case r.Cause.Code == v1alpha1.CauseGangGrows:
			growths++
		case r.Cause.Slot == slot && (r.Cause.Code == v1alpha1.CausePodLost || r.Cause.Code == v1alpha1.CausePodReplaced):
			losses++
		}
	}
	w.Say("generation %d, causes %v", now.Generation, causes)
	if growths > 1 || losses == 0 {
		t.Errorf("%d growths, %d losses of slot %d: %+v", growths, losses, slot, now.Recoveries)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
