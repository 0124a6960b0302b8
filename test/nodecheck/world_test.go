package nodecheck

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const namespace, shared, container = "nodecheck", "shared", "trainer"

//go:embed sitecustomize.py
var faults string

var record = flag.Bool("record", false, "write what was seen into "+results)

// results has one line for each case.
const results = "testdata/checks.jsonl"

// row is what was seen of one case, for docs/designs/node-check.md.
type row struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Result   string  `json:"result"`
	Replaced int32   `json:"replaced"`
	Seconds  float64 `json:"seconds"`
	Text     string  `json:"text,omitempty"`
}

// checked is a job whose pods are checked before its first generation.
type checked struct {
	name, what string
	// fault and where are those of sitecustomize.py.
	fault, where string
	// pods is their number, 3 unless set; nodes is on how many nodes they may run, 2 unless set.
	pods, nodes int
	// meanwhile plays a fault while the first trials wait.
	meanwhile func(context.Context, *testing.T, *job)
	// healed: the node is repaired when the pod finds no other one.
	healed bool
	// mend ends the fault or the check, once the check is over or the gang waits for a healthy node, so that the job can train.
	mend func(context.Context, *testing.T, *job)
	// result, replaced and says are of the check.
	result   string
	replaced int
	says     string
}

type world struct{ *harness.Cluster }

func start(ctx context.Context, t *testing.T) *world {
	t.Helper()
	c := harness.Start(t, devcluster.Options{Name: "nodecheck", Nodes: 2, Replace: true})
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			m.Data["sitecustomize.py"] = faults
		}
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	return &world{c}
}

// job is a case that is played.
type job struct {
	*world
	checked
	// folder is on this machine the job's folder in /shared.
	folder string
	// gang was read last, uids are the first pods by slot.
	gang *v1alpha1.Gang
	uids []string
}

// begin creates the job, and returns once the first trials of all pods wait.
func (w *world) begin(ctx context.Context, t *testing.T, c checked) *job {
	t.Helper()
	j := &job{world: w, checked: c}
	j.pods, j.nodes = cmp.Or(c.pods, 3), cmp.Or(c.nodes, 2)
	annotations := map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationNodeCheck: v1alpha1.NodeCheckAlways, v1alpha1.AnnotationStandbys: "off",
	}
	if err := w.Client().Create(ctx, harness.Job(namespace, c.name, int32(j.pods), 0, annotations, j.spec())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.remove(t) })
	j.until(ctx, t, "the trials wait", func(ctx context.Context, _ *v1alpha1.Gang) (bool, string) {
		folder, err := j.SharedPath(ctx, namespace, shared)
		j.folder = filepath.Join(folder, c.name)
		came, _ := filepath.Glob(filepath.Join(j.folder, "came-*"))
		return err == nil && len(came) == j.pods, fmt.Sprint(came, err)
	})
	s, err := j.Shape(ctx, j.gang)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range s.Assignments {
		j.uids = append(j.uids, a.UID)
	}
	return j
}

func (j *job) spec() corev1.PodSpec {
	line := "env PYTHONPATH=/trainer:$PYTHONPATH torchrun --nnodes=%d --nproc-per-node=1 /trainer/trainer.py 0.05 65536"
	spec := harness.TrainerPod(fmt.Sprintf(line, j.pods), 1, 0)
	main := &spec.Containers[0]
	delete(main.Resources.Limits, layout.GPUResource)
	delete(main.Resources.Requests, layout.GPUResource)
	main.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("1Gi")
	main.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	main.Env = append(main.Env, corev1.EnvVar{Name: "CASE", Value: j.name}, corev1.EnvVar{Name: "FAULT", Value: j.fault},
		corev1.EnvVar{Name: "WHERE", Value: j.where}, corev1.EnvVar{Name: "OMP_NUM_THREADS", Value: "1"},
		corev1.EnvVar{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}})
	spec.Volumes = append(spec.Volumes, harness.ClaimVolume(shared, false))
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	if j.nodes == 1 {
		spec.NodeSelector = map[string]string{corev1.LabelHostname: j.Nodes()[0].Name}
	}
	return spec
}

// until waits until the Gang is as wanted.
func (j *job) until(ctx context.Context, t *testing.T, what string, holds func(context.Context, *v1alpha1.Gang) (bool, string)) {
	t.Helper()
	if err := j.Until(ctx, j.name+": "+what, eventually.Timeout, func(ctx context.Context) (ok bool, seen string) {
		var err error
		if j.gang, err = j.Gang(ctx, namespace, j.name); err != nil {
			return false, err.Error()
		}
		ok, seen = holds(ctx, j.gang)
		return ok, seen + "; " + harness.Says(j.gang)
	}); err != nil {
		t.Fatal(err)
	}
}

// trains waits until the job makes steps, and returns its check.
func (j *job) trains(ctx context.Context, t *testing.T) *v1alpha1.NodeCheck {
	t.Helper()
	if j.mend != nil {
		j.until(ctx, t, "the check is over", func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
			r := g.Status.Run
			return r != nil && r.NodeCheck != nil && (r.NodeCheck.EndedAt != nil || r.NodeCheck.Result == noHealthy), ""
		})
		j.mend(ctx, t, j)
	}
	j.until(ctx, t, "it trains", func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		r := g.Status.Run
		return r != nil && r.Generation == 1 && r.Progress.OptimizerSteps+r.Progress.Step > 0, ""
	})
	check := j.gang.Status.Run.NodeCheck
	if check == nil || check.EndedAt == nil {
		t.Fatalf("check %+v", check)
	}
	return check
}

// pod returns the pod that began in a slot.
func (j *job) pod(ctx context.Context, t *testing.T, slot int) corev1.Pod {
	t.Helper()
	list, err := j.Pods(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if string(p.UID) == j.uids[slot] {
			return p
		}
	}
	t.Fatalf("the pod of slot %d is gone", slot)
	return corev1.Pod{}
}

// process returns a process of the pod of slot 1.
func (j *job) process(ctx context.Context, t *testing.T, is func(harness.Process) bool) harness.Process {
	t.Helper()
	p, err := j.Find(ctx, namespace, j.pod(ctx, t, 1).Name, container, is)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// enter runs a command in the network of the pod of slot 1.
func (j *job) enter(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"-t", fmt.Sprint(j.process(ctx, t, harness.Agent).Host), "-n"}, args...)
	if out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput(); err != nil {
		t.Fatalf("nsenter %v: %v: %s", args, err, out)
	}
}

// write creates a file in the job's folder.
func (j *job) write(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.folder, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (j *job) nodeList(ctx context.Context, t *testing.T) []corev1.Node {
	t.Helper()
	nodes := &corev1.NodeList{}
	if err := j.Client().List(ctx, nodes); err != nil {
		t.Fatal(err)
	}
	return nodes.Items
}

// note says what was seen, and with -record keeps it in place of what was seen before.
func (j *job) note(t *testing.T, check *v1alpha1.NodeCheck) {
	took := check.EndedAt.Sub(check.StartedAt.Time)
	t.Logf("%s: %s, %d replaced, in %s: %s", j.name, check.Result, check.Replaced, took, check.Message)
	if !*record || t.Failed() {
		return
	}
	r := row{j.name, j.what, check.Result, check.Replaced, math.Round(took.Seconds()), check.Message}
	harness.KeepRow(t, results, r, func(a, b row) int { return cmp.Compare(a.Name, b.Name) })
}

// remove removes the job, after a failure with all that people would look at, and ends what it suspects of nodes.
func (j *job) remove(t *testing.T) {
	ctx := context.Background()
	if t.Failed() {
		for _, args := range [][]string{
			{"get", "gang", "-n", namespace, j.name, "-o", "yaml"},
			{"get", "pods", "-n", namespace, "-o", "wide"},
			{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
			{"logs", "-n", namespace, "-l", v1alpha1.LabelGang + "=" + j.name, "--tail=40", "--prefix"},
		} {
			out, err := j.RunKubectl(ctx, args...)
			j.Say("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if _, err := j.RunKubectl(ctx, "delete", "job", j.name, "-n", namespace); err != nil {
		t.Error(err)
	}
	for _, node := range j.Nodes() {
		if out, err := j.Holdfast(ctx, "evict", "node/"+node.Name, "--undo"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if err := j.Well(ctx, node.Name); err != nil {
			t.Error(err)
		}
	}
	if err := j.Until(ctx, "the pods are gone", time.Minute, func(ctx context.Context) (bool, string) {
		list, err := j.Pods(ctx, namespace, j.name)
		return err == nil && len(list) == 0, fmt.Sprint(len(list), err)
	}); err != nil {
		t.Error(err)
	}
}
