package replace

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
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

const (
	namespace = "replace"
	// grace is the pods' termination grace, in seconds.
	grace = 5
	// container is the training container's name.
	container = "trainer"
)

// world is a cluster with Holdfast on it.
type world struct {
	*harness.Cluster
	slotGaps *slotGaps
}

// labelControl is on the nodes that the control plane may run on.
const labelControl = "replace.test/control"

// overlay is a user's kustomization. The control plane has its own nodes. No budget holds decisions, because the cases break nodes in
// parallel. No daemons run, because the cases write the verdicts.
const overlay = `
resources: [%s]
patches:
- target: {kind: Deployment}
  patch: '[{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"` + labelControl + `": "true"}}]'
- target: {kind: Deployment, name: holdfast-controller}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --nodes-max-out=100%%}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --nodes-breaker=100%%}
- target: {kind: DaemonSet}
  patch: |
    $patch: delete
    kind: DaemonSet
    metadata: {name: any}
`

func install(ctx context.Context, t *testing.T, name string, nodes int) *world {
	t.Helper()
	c := harness.Start(t, devcluster.Options{Name: name, Nodes: nodes})
	w := &world{Cluster: c}
	for i := range control {
		w.onNode(ctx, t, c.Nodes()[i].Name, func(n *corev1.Node) { n.Labels[labelControl] = "true" })
	}
	// Each node gets only the images that it needs: all images on all nodes would take most of a minute on two cores.
	if err := errors.Join(
		w.LoadImagesInto(ctx, w.Nodes()[:control], harness.ControlPlane...),
		w.LoadImagesInto(ctx, w.Nodes(), harness.Injected...),
	); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(w.Overlay(dir, overlay), w.Apply(ctx, dir)); err != nil {
		w.dump(ctx)
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if err := w.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	w.slotGaps = follow(ctx, t, w)
	return w
}

// training is a job whose pods have one rank each and, unless they request less, a node of their own.
type training struct {
	name string
	// nodes are the nodes that the pods may use.
	nodes []string
	// members is the number of pods; 2 unless set.
	members int
	// policy is the restart policy; Never unless set.
	policy corev1.RestartPolicy
	// grace is the termination grace period of the pods, in seconds; unless set, the constant grace.
	grace int64
	// gpus is the request of each pod; unless set 2, all GPUs of a node.
	gpus int64
	// pause is the duration of a step.
	pause time.Duration
	// standbys switches standbys on. Then the launcher must have no arguments except a script.
	standbys bool
	// priority is the name of a PriorityClass.
	priority    string
	annotations map[string]string
}

func (j training) job() *batchv1.Job {
	members := cmp.Or(j.members, 2)
	script := "--no-python /opt/holdfast-python/venv/bin/python3 -u /trainer/trainer.py"
	all := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationStandbys: "off"}
	if j.standbys {
		script = "/trainer/trainer.py"
		all[v1alpha1.AnnotationStandbys] = "auto"
	}
	line := fmt.Sprintf("torchrun --nnodes=%d --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX "+
		"--master-addr=none --master-port=29500 %s %v 65536", members, script, j.pause.Seconds())
	maps.Copy(all, j.annotations)
	pod := harness.TrainerPod(line, cmp.Or(j.grace, grace), cmp.Or(j.gpus, 2))
	pod.PriorityClassName, pod.RestartPolicy, pod.Affinity = j.priority, cmp.Or(j.policy, pod.RestartPolicy), oneOf(j.nodes)
	return harness.Job(namespace, j.name, int32(members), 0, all, pod)
}

// oneOf restricts a pod to some nodes.
func oneOf(nodes []string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}}},
		}}}}
}

// Short names for the harness types.
type (
	shape      = harness.Shape
	assignment = harness.Assignment
)

func (w *world) gang(ctx context.Context, job string) (*v1alpha1.Gang, error) {
	return w.Gang(ctx, namespace, job)
}

// record returns the last record of a job's coordinator.
func (w *world) record(ctx context.Context, t *testing.T, job string) v1alpha1.RunStatus {
	t.Helper()
	g, err := w.gang(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	if g.Status.Run == nil {
		t.Fatalf("job %s has no record", job)
	}
	return *g.Status.Run
}

// until is Until, which ends the test on failure.
func (w *world) until(ctx context.Context, t *testing.T, what string, holds func(context.Context) (bool, string)) {
	t.Helper()
	if err := w.Until(ctx, what, eventually.Timeout, holds); err != nil {
		t.Fatal(err)
	}
}

// pods returns all pods of a job: its members, and the replaced pods.
func (w *world) pods(ctx context.Context, job string) (members, replaced []corev1.Pod, err error) {
	return w.Members(ctx, namespace, job)
}

// runs waits until the job runs the given generation or a later one and finishes steps, and returns its shape.
func (w *world) runs(ctx context.Context, t *testing.T, job string, generation int64) shape {
	t.Helper()
	s, err := w.Trains(ctx, namespace, job, generation)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// trains waits until all ranks of a job have finished that many further steps.
func (w *world) trains(ctx context.Context, t *testing.T, job string, more int64) {
	t.Helper()
	from := w.record(ctx, t, job).Progress.Step
	w.until(ctx, t, fmt.Sprintf("%s makes %d steps more", job, more), func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		return g.Status.Run.Progress.Step >= from+more, fmt.Sprintf("step %d after %d", g.Status.Run.Progress.Step, from)
	})
}

// replacedOnce checks that between two states exactly the pods of some slots were replaced, that the others were not disturbed, and that
// the Job counted no failure.
func (w *world) replacedOnce(ctx context.Context, t *testing.T, job string, before, after shape, slots ...int) {
	t.Helper()
	if err := before.Became(after, slots...); err != nil {
		t.Error(err)
	}
	w.unharmed(ctx, t, job)
}

// unharmed checks that the Job counted no failure.
func (w *world) unharmed(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	job := &batchv1.Job{}
	if err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, job); err != nil {
		t.Fatal(err)
	}
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			t.Fatalf("the Job is %s: %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	uncounted := job.Status.UncountedTerminatedPods
	if job.Status.Failed != 0 || uncounted != nil && len(uncounted.Failed) > 0 {
		t.Errorf("the Job counts %d failed pods, uncounted %+v", job.Status.Failed, uncounted)
	}
}

// start creates a job and waits until it runs.
func (w *world) start(ctx context.Context, t *testing.T, j training) shape {
	t.Helper()
	if err := w.Client().Create(ctx, j.job()); err != nil {
		t.Fatal(err)
	}
	return w.runs(ctx, t, j.name, 1)
}

// end deletes a job and waits until all its present and former pods are gone.
func (w *world) end(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Error(err)
	}
	w.left(ctx, t, name, 0)
}

// left waits until n pods of a gang are left, none of which was replaced.
func (w *world) left(ctx context.Context, t *testing.T, name string, n int) {
	t.Helper()
	w.until(ctx, t, fmt.Sprintf("%d pods of %s are left, none of them replaced", n, name), func(ctx context.Context) (bool, string) {
		members, replaced, err := w.pods(ctx, name)
		var seen []string
		for _, p := range append(members, replaced...) {
			seen = append(seen, fmt.Sprintf("%s on %s %v %v %v", p.Name, p.Spec.NodeName, p.DeletionTimestamp, p.Finalizers, p.Labels))
		}
		return err == nil && len(members) == n && len(replaced) == 0, strings.Join(seen, "; ")
	})
}

// sicken writes into Nodes a daemon's verdict that the nodes cannot be used; heal removes it. The node controller decides what happens.
func (w *world) sicken(ctx context.Context, t *testing.T, nodes ...string) {
	t.Helper()
	text, err := json.Marshal(v1alpha1.NodeHealth{Action: v1alpha1.ActionEvict, Cause: "TestFault", Message: "the test says so", Since: metav1.NowMicro()})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		w.onNode(ctx, t, node, func(n *corev1.Node) {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationHealth, string(text))
		})
	}
}

func (w *world) heal(ctx context.Context, t *testing.T, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		w.onNode(ctx, t, node, func(n *corev1.Node) { delete(n.Annotations, v1alpha1.AnnotationHealth) })
	}
	w.well(ctx, t, nodes...)
}

// well waits until nodes accept new pods again.
func (w *world) well(ctx context.Context, t *testing.T, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		if err := w.Well(ctx, node); err != nil {
			t.Fatal(err)
		}
	}
}

// outage returns the controller's decision about a node; the zero value: none.
func (w *world) outage(ctx context.Context, node string) (v1alpha1.NodeOutage, error) {
	n, o := &corev1.Node{}, v1alpha1.NodeOutage{}
	if err := w.Client().Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return o, err
	}
	if text := n.Annotations[v1alpha1.AnnotationOutage]; text != "" {
		return o, json.Unmarshal([]byte(text), &o)
	}
	return o, nil
}

func (w *world) onNode(ctx context.Context, t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	w.until(ctx, t, "writing node "+name, func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		if err := w.Client().Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
			return false, err.Error()
		}
		change(n)
		err := w.Client().Update(ctx, n)
		return err == nil, fmt.Sprint(err)
	})
}

// stop stops the agent of a pod. The agent carries out no order until the returned function is called, so that a test can inspect a state
// in the middle of a recovery.
func (w *world) stop(ctx context.Context, t *testing.T, pod string) (goOn func()) {
	t.Helper()
	signal := func(ctx context.Context, sig syscall.Signal) error {
		return w.Signal(ctx, namespace, pod, container, sig, harness.Agent)
	}
	if err := signal(ctx, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := signal(ctx, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
}

// rank reports whether a process is one that trains.
func rank(p harness.Process) bool {
	return p.Inside != 1 && slices.Contains(p.Args, "/trainer/trainer.py") && strings.Contains(p.Args[0], "python")
}

// dump prints the state of jobs and nodes.
func (w *world) dump(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide", "--show-labels"},
		{"get", "gangs,jobs", "-n", namespace, "-o", "yaml"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
		{"logs", "-n", namespace, "-l", v1alpha1.LabelGang, "--tail=30", "--prefix"},
		{"logs", "-n", "holdfast-system", "-l", "app.kubernetes.io/name=holdfast-controller", "--tail=60", "--prefix", "--all-containers"},
	} {
		out, err := w.RunKubectl(ctx, args...)
		w.Say("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
