package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

const (
	// stepLine steps without PyTorch; %d is the number of pods.
	stepLine = "torchrun --nnodes=%d --nproc-per-node=1 --master-addr=none --master-port=29500 --no-python " + interpreter +
		" -u /trainer/trainer.py 0.2 1000"
	// replacements is how many pods of each job are replaced in a row.
	replacements = 10
	// jobVersion is the annotation by which Volcano knows a pod of an earlier version of its job.
	jobVersion = "volcano.sh/job-version"
)

// unmarked takes Holdfast's mark off each write that sets it.
const unmarked = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: unmarked}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods, pods/status]}]
  matchConditions:
  - {name: marks, expression: "object.metadata.?annotations[?'volcano.sh/job-version'].orValue('') == '-1'"}
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/metadata/annotations/volcano.sh~1job-version', value: '0'}]"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: unmarked}
spec: {policyName: unmarked}
`

// testVolcanoPolicies: no policy fires when Holdfast replaces a pod, whether the policies are the job's or its tasks'. If the mark is
// taken off the pod, they do fire.
func testVolcanoPolicies(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.Volcano)
	jobs := []*stepping{
		startStepping(ctx, t, w, "VolcanoJob", "-job-policies", func(spec map[string]any) {
			spec["maxRetry"], spec["policies"] = int64(1), restartsJob()
		}),
		startStepping(ctx, t, w, "VolcanoJob", "-task-policies", func(spec map[string]any) {
			spec["maxRetry"] = int64(1)
			for _, task := range spec["tasks"].([]any) {
				policies, _ := task.(map[string]any)["policies"].([]any)
				task.(map[string]any)["policies"] = append(policies, restartsJob()...)
			}
		}),
	}
	for _, j := range jobs {
		j.settle(ctx, t, 1)
	}
	schedulerMarks(ctx, t, w, jobs[0].shape.Assignments[0].Pod)
	for i := range replacements {
		for _, j := range jobs {
			j.evict(ctx, t, i%int(j.pods))
		}
		for _, j := range jobs {
			j.replaced(ctx, t, i%int(j.pods))
		}
		w.Say("  replacement %d of each job: no policy fired", i+1)
	}
	if !t.Failed() {
		unmark(ctx, t, w.Cluster, jobs[0].shape.Assignments[0].Pod)
		for _, j := range jobs {
			j.evict(ctx, t, 0)
		}
		for _, j := range jobs {
			until(ctx, t, w.Cluster, "without the mark a policy of "+j.name+" fires", func(ctx context.Context) (bool, string) {
				obj := j.live(ctx, t, j.name).Object
				return j.restarts(obj) > 0, fmt.Sprint(obj["status"])
			})
		}
		w.Say("  without the mark the policies of both jobs fired")
		if _, err := w.KubectlIn(ctx, unmarked, "delete", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	removeAll(ctx, t, w.Cluster, jobs...)
}

// restartsJob returns policies that restart the job when one of its pods goes.
func restartsJob() []any {
	on := func(event string) any { return map[string]any{"event": event, "action": "RestartJob"} }
	return []any{on("PodEvicted"), on("PodFailed")}
}

// stepping is a job that steps without PyTorch, under Volcano's scheduler.
type stepping struct {
	*cell
	name string
	// group is the job's PodGroup, as it was after the last replacement.
	group string
}

// startStepping applies the example of a kind with its specification changed.
func startStepping(ctx context.Context, t *testing.T, w *world, kind, suffix string, change func(spec map[string]any)) *stepping {
	t.Helper()
	all := subjects()
	s := all[slices.IndexFunc(all, func(s subject) bool { return s.name == kind })]
	s.gpus = 1
	j := &stepping{cell: &cell{subject: s, Cluster: w.Cluster, scheduler: volcano}}
	obj, _, err := s.object(ctx, w.Cluster, volcano, suffix, fmt.Sprintf(stepLine, s.pods))
	if err != nil {
		t.Fatal(err)
	}
	changePods(obj.Object, func(spec map[string]any) { spec["terminationGracePeriodSeconds"] = int64(5) })
	change(obj.Object["spec"].(map[string]any))
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.KubectlIn(ctx, string(text), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	j.name = obj.GetName()
	return j
}

// settle waits until all ranks step in this generation or a later one, and keeps what the job has then.
func (j *stepping) settle(ctx context.Context, t *testing.T, generation int64) {
	t.Helper()
	s, err := j.Trains(ctx, namespace, j.name, generation)
	if err != nil {
		t.Fatal(err)
	}
	obj := j.live(ctx, t, j.name)
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "state", "phase")
	j.shape, j.counted = s, fmt.Sprint(phase, j.restarts(obj.Object), j.failures(obj.Object))
	j.group = j.groupOf(ctx, t)
}

// groupOf returns the job's PodGroup with its UID.
func (j *stepping) groupOf(ctx context.Context, t *testing.T) string {
	t.Helper()
	pod, err := j.Kube().CoreV1().Pods(namespace).Get(ctx, j.shape.Assignments[0].Pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group := &unstructured.Unstructured{}
	group.SetAPIVersion("scheduling.volcano.sh/v1beta1")
	group.SetKind("PodGroup")
	name := client.ObjectKey{Namespace: namespace, Name: pod.Annotations["scheduling.k8s.io/group-name"]}
	if err := j.Client().Get(ctx, name, group); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(name, group.GetUID())
}

// evict evicts the pod of a slot, as a drain does.
func (j *stepping) evict(ctx context.Context, t *testing.T, slot int) {
	t.Helper()
	pod := j.shape.Assignments[slot].Pod
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}
	if err := j.Kube().PolicyV1().Evictions(namespace).Evict(ctx, eviction); err != nil {
		t.Fatal(err)
	}
}

// replaced demands that the pod of this slot alone was replaced, and that Volcano counted nothing and kept the PodGroup.
func (j *stepping) replaced(ctx context.Context, t *testing.T, slot int) {
	t.Helper()
	shape, group, counted := j.shape, j.group, j.counted
	j.settle(ctx, t, shape.Generation+1)
	if err := shape.Became(j.shape, slot); err != nil {
		t.Errorf("%s: %v", j.name, err)
	}
	if j.group != group {
		t.Errorf("%s: PodGroup %s became %s", j.name, group, j.group)
	}
	if j.counted != counted {
		t.Errorf("%s: phase, retryCount and failures were %s and are %s", j.name, counted, j.counted)
	}
}

// unmark creates the policy, and waits until it takes the mark off a pod.
func unmark(ctx context.Context, t *testing.T, c *harness.Cluster, pod string) {
	t.Helper()
	if _, err := c.KubectlIn(ctx, unmarked, "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c, "the mark is taken off", func(ctx context.Context) (bool, string) {
		version, err := marked(ctx, c.Kube(), pod)
		return version == "0", fmt.Sprint(version, err)
	})
}

// schedulerMarks demands that Holdfast's scheduler has the right to mark a pod, by its status.
func schedulerMarks(ctx context.Context, t *testing.T, w *world, pod string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:holdfast-system:holdfast-scheduler",
		Groups:   []string{"system:authenticated", "system:serviceaccounts"},
	}
	as, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := marked(ctx, as, pod, "status"); version != "-1" {
		t.Errorf("marked by the scheduler a pod would have version %q: %v", version, err)
	}
	if _, err := marked(ctx, as, pod); !apierrors.IsForbidden(err) {
		t.Errorf("the scheduler may write all of a pod: %v", err)
	}
}

// marked returns the version that a pod would have if it were marked; it is not.
func marked(ctx context.Context, as kubernetes.Interface, pod string, below ...string) (string, error) {
	mark := []byte(`{"metadata": {"annotations": {"` + jobVersion + `": "-1"}}}`)
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	p, err := as.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, mark, dry, below...)
	if err != nil {
		return "", err
	}
	return p.Annotations[jobVersion], nil
}

// removeAll deletes jobs, and waits until neither pods nor Gangs are left.
func removeAll(ctx context.Context, t *testing.T, c *harness.Cluster, jobs ...*stepping) {
	t.Helper()
	for _, j := range jobs[1:] {
		if _, err := c.RunKubectl(ctx, "delete", j.resource+"/"+j.name, "-n", namespace, "--wait=false"); err != nil {
			t.Fatal(err)
		}
	}
	deleted(ctx, t, c, jobs[0].resource+"/"+jobs[0].name)
	until(ctx, t, c, "the Gangs are gone", func(ctx context.Context) (bool, string) {
		gangs := &v1alpha1.GangList{}
		err := c.Client().List(ctx, gangs, client.InNamespace(namespace))
		return err == nil && len(gangs.Items) == 0, fmt.Sprint(len(gangs.Items), err)
	})
}
