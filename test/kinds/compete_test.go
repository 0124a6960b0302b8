package kinds

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/operators"
)

// competitors are a PyTorchJob that Holdfast's scheduler places and a Volcano Job that Volcano's does; PODS, GPUS and WHERE are replaced.
var competitors = map[string]string{
	"mine": `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mine, namespace: kinds, annotations: {holdfast.dev/enabled: "true"}}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: PODS
      restartPolicy: OnFailure
      template:
        spec: {terminationGracePeriodSeconds: 0, WHERE, containers: [{name: pytorch, image: ` + layout.BaseImage + `,
          command: [sleep, "600"], resources: {limits: {nvidia.com/gpu: GPUS}}}]}
`,
	"theirs": `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: theirs, namespace: kinds, annotations: {holdfast.dev/enabled: "true"}}
spec:
  schedulerName: volcano
  minAvailable: PODS
  tasks:
  - name: worker
    replicas: PODS
    template:
      spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0, WHERE, containers: [{name: main, image: ` + layout.BaseImage + `,
        command: [sleep, "600"], resources: {limits: {nvidia.com/gpu: GPUS}}}]}
`,
}

// holders is how many pods of a job have a node and did not end, how many of them run, and how many failed.
type holders struct{ bound, running, failed int }

// testCompete has two schedulers place jobs of different kinds on the same nodes at the same time.
func testCompete(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.Volcano, operators.TrainingOperator)
	for round := range 4 {
		t.Run(fmt.Sprint("Shared", round), func(t *testing.T) { w.shared(ctx, t, round) })
		if t.Failed() {
			return
		}
	}
	t.Run("Split", func(t *testing.T) { w.split(ctx, t) })
}

// shared: each job needs all nodes. One is placed whole, and the other has no pod on a node within a bounded time; neither job ends. In odd
// rounds room comes while both wait.
func (w *world) shared(ctx context.Context, t *testing.T, round int) {
	unblock := func(context.Context) error { return nil }
	if round%2 == 1 {
		var err error
		if unblock, err = w.Block(ctx, namespace, 3); err != nil {
			t.Fatal(err)
		}
	}
	w.createBoth(ctx, t, map[string]competitor{"mine": {3, 2, ""}, "theirs": {3, 2, ""}})
	if round%2 == 1 {
		until(ctx, t, w.Cluster, "both jobs wait", func(ctx context.Context) (bool, string) {
			pods, err := w.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelGang})
			return err == nil && len(pods.Items) >= 3, fmt.Sprint(len(pods.Items), err)
		})
		if err := unblock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	began, failed, half := time.Now(), map[types.UID]bool{}, time.Duration(0)
	alone := func(ctx context.Context) (bool, string) {
		mine, theirs := w.holds(ctx, t, "mine", failed), w.holds(ctx, t, "theirs", failed)
		if mine.bound > 0 && theirs.bound > 0 {
			half = time.Since(began)
		}
		w.goesOn(ctx, t)
		return mine.running == 3 && theirs.bound == 0 || theirs.running == 3 && mine.bound == 0,
			fmt.Sprintf("PyTorchJob %+v, Volcano Job %+v", mine, theirs)
	}
	if err := w.Until(ctx, "one job runs and the other holds no node", 2*time.Minute, alone); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if err := w.During(ctx, "it stays so", 5*time.Second, alone); err != nil {
		t.Error(err)
	}
	winner := "the PyTorchJob"
	if w.holds(ctx, t, "theirs", failed).running == 3 {
		winner = "the Volcano Job"
	}
	w.Say("  round %d: %s runs after %.1f s; both held nodes until %.1f s; %d pods failed", round, winner, took.Seconds(), half.Seconds(), len(failed))
	w.deleteBoth(ctx, t)
}

// split: Volcano's jobs go to a node with a taint that they tolerate, all others elsewhere. Both jobs are placed, and no pod fails.
func (w *world) split(ctx context.Context, t *testing.T) {
	node := w.Nodes()[2].Name
	for _, args := range [][]string{
		{"label", "node", node, "example.com/scheduler=volcano"},
		{"taint", "node", node, "example.com/scheduler=volcano:NoSchedule"},
	} {
		if _, err := w.RunKubectl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	w.createBoth(ctx, t, map[string]competitor{
		"mine": {4, 1, ""},
		"theirs": {2, 1, `nodeSelector: {example.com/scheduler: volcano},
        tolerations: [{key: example.com/scheduler, value: volcano, effect: NoSchedule}]`},
	})
	began, failed := time.Now(), map[types.UID]bool{}
	until(ctx, t, w.Cluster, "both jobs run", func(ctx context.Context) (bool, string) {
		mine, theirs := w.holds(ctx, t, "mine", failed), w.holds(ctx, t, "theirs", failed)
		return mine.running == 4 && theirs.running == 2, fmt.Sprintf("PyTorchJob %+v, Volcano Job %+v", mine, theirs)
	})
	if len(failed) > 0 {
		t.Errorf("%d pods failed", len(failed))
	}
	w.Say("  split: both run after %.1f s", time.Since(began).Seconds())
	w.deleteBoth(ctx, t)
	for _, args := range [][]string{{"label", "node", node, "example.com/scheduler-"}, {"taint", "node", node, "example.com/scheduler-"}} {
		if _, err := w.RunKubectl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// competitor is a job's number of pods, GPUs for each, and what keeps its pods to some nodes.
type competitor struct {
	pods, gpus int
	where      string
}

// createBoth creates both jobs at once.
func (w *world) createBoth(ctx context.Context, t *testing.T, jobs map[string]competitor) {
	t.Helper()
	created := make(chan error, len(jobs))
	for name, j := range jobs {
		text := strings.NewReplacer("PODS", fmt.Sprint(j.pods), "GPUS", fmt.Sprint(j.gpus), "WHERE, ", j.where).Replace(competitors[name])
		if j.where != "" {
			text = strings.Replace(text, j.where, j.where+", ", 1)
		}
		go func() {
			_, err := w.KubectlIn(ctx, text, "create", "-f", "-")
			created <- err
		}()
	}
	for range jobs {
		if err := <-created; err != nil {
			t.Fatal(err)
		}
	}
}

// holds counts the pods of a job, and notes those that failed.
func (w *world) holds(ctx context.Context, t *testing.T, gang string, failed map[types.UID]bool) (h holders) {
	t.Helper()
	pods := &corev1.PodList{}
	if err := w.Client().List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelGang: gang}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		switch {
		case p.Status.Phase == corev1.PodFailed:
			if !failed[p.UID] {
				w.Say("  pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message)
			}
			failed[p.UID] = true
		case p.Spec.NodeName != "":
			h.bound++
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				h.running++
			}
		}
	}
	h.failed = len(failed)
	return h
}

// goesOn demands that neither job has ended.
func (w *world) goesOn(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, object := range []string{"pytorchjob/mine", "jobs.batch.volcano.sh/theirs"} {
		out, err := w.RunKubectl(ctx, "get", object, "-n", namespace, "-o",
			`jsonpath={.status.state.phase} {.status.conditions[?(@.type=="Failed")].status} {.status.conditions[?(@.type=="Succeeded")].status}`)
		if err != nil || strings.Contains(out, "True") || strings.Contains(out, "Failed") || strings.Contains(out, "Completed") {
			t.Fatalf("%s: %s %v", object, out, err)
		}
	}
}

func (w *world) deleteBoth(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, err := w.RunKubectl(ctx, "delete", "pytorchjob/mine", "jobs.batch.volcano.sh/theirs", "-n", namespace,
		"--timeout="+eventually.Timeout.String()); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, w.Cluster, "all pods and Gangs are gone", func(ctx context.Context) (bool, string) {
		gangs := &v1alpha1.GangList{}
		err := w.Client().List(ctx, gangs, client.InNamespace(namespace))
		pods, err2 := w.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && err2 == nil && len(gangs.Items)+len(pods.Items) == 0, fmt.Sprint(len(gangs.Items), len(pods.Items), err, err2)
	})
}
