package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

const (
	// python is the claim, and the volume of it, with Python and PyTorch.
	python = "python"
	// sendrecv is the image of training-operator's example, with its script.
	sendrecv = "holdfast.dev/peers/pytorch-dist-sendrecv:1"
)

// jobSet stands for an example of JobSet's, whose module has none: workers look for their driver by the name that JobSet gives it.
const jobSet = `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: example}
spec:
  replicatedJobs:
  - name: driver
    template: {spec: {template: {spec: {restartPolicy: Never, containers: [
      {name: driver, image: base, command: [sleep, "10"]}]}}}}
  - name: workers
    replicas: 2
    template: {spec: {parallelism: 2, completions: 2, template: {spec: {restartPolicy: Never, containers: [
      {name: worker, image: base, command: [timeout, "60", bash, -c,
        "until getent hosts example-driver-0-0.example; do sleep 0.5; done"]}]}}}}
`

// example is a job of a kind that its controller brings to its end.
type example struct {
	name string
	read func(context.Context, *harness.Cluster) ([]byte, error)
	// change makes of a pod's specification one that runs here.
	change func(spec map[string]any)
	// job names the object, ends what kubectl waits for.
	job, ends string
	pods      int
	scheduler string
	// pod prints says.
	pod, says string
}

func examples() []example {
	file := func(o *operators.Operator, name string) func(context.Context, *harness.Cluster) ([]byte, error) {
		return func(ctx context.Context, c *harness.Cluster) ([]byte, error) { return o.File(ctx, c.Source, name) }
	}
	return []example{
		{
			name: "VolcanoJob",
			read: file(operators.Volcano, "example/job.yaml"),
			// The image ends at once; six pods that ask for a processor each would not fit.
			change: func(spec map[string]any) {
				main := containers(spec)[0]
				main["image"], main["resources"] = layout.BaseImage, map[string]any{"requests": map[string]any{"cpu": "20m"}}
			},
			job: "jobs.batch.volcano.sh/test-job", ends: "jsonpath={.status.state.phase}=Completed", pods: 6, scheduler: "volcano",
		},
		{
			name:   "JobSet",
			read:   func(context.Context, *harness.Cluster) ([]byte, error) { return []byte(jobSet), nil },
			change: func(spec map[string]any) { containers(spec)[0]["image"] = layout.BaseImage },
			job:    "jobset/example", ends: "condition=Completed", pods: 5, scheduler: corev1.DefaultSchedulerName,
		},
		{
			name: "PyTorchJob",
			read: file(operators.TrainingOperator, "examples/pytorch/smoke-dist/pytorch_job_sendrecv.yaml"),
			// PyTorch comes by a volume.
			change: func(spec map[string]any) {
				main := containers(spec)[0]
				main["image"] = sendrecv
				main["volumeMounts"] = []any{map[string]any{"name": python, "mountPath": "/opt/holdfast-python", "readOnly": true}}
				spec["volumes"] = []any{map[string]any{"name": python, "persistentVolumeClaim": map[string]any{"claimName": python, "readOnly": true}}}
			},
			job: "pytorchjob/pytorch-dist-basic-sendrecv", ends: "condition=Succeeded", pods: 4, scheduler: corev1.DefaultSchedulerName,
			pod: "pytorch-dist-basic-sendrecv-master-0", says: "Result from worker 3",
		},
	}
}

// testExamples: an object without annotation ends as its own controller ends it, and has no keys of Holdfast.
func testExamples(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.All...)
	c := w.Cluster
	if err := loadSendrecv(ctx, c); err != nil {
		t.Fatal(err)
	}
	for _, e := range examples() {
		t.Run(e.name, func(t *testing.T) {
			e.apply(ctx, t, c)
			if err := waitFor(ctx, c, e.job, e.ends); err != nil {
				t.Fatal(err)
			}
			e.untouched(ctx, t, c)
			deleted(ctx, t, c, e.job)
		})
	}
}

// apply applies the example with what must differ here.
func (e example) apply(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	text, err := e.read(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := operators.Decode(text)
	if err != nil || len(objects) != 1 {
		t.Fatalf("%d objects: %v", len(objects), err)
	}
	changePods(objects[0].Object, e.change)
	changed, err := json.Marshal(objects[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.KubectlIn(ctx, string(changed), "apply", "--server-side", "-n", namespace, "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// untouched demands that all pods end and are as their controller made them.
func (e example) untouched(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	pods := &corev1.PodList{}
	until(ctx, t, c, "its pods have ended", func(ctx context.Context) (bool, string) { // a PyTorchJob has succeeded once its master has
		err := c.Client().List(ctx, pods, client.InNamespace(namespace))
		running := slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodSucceeded })
		return err == nil && len(pods.Items) == e.pods && !running,
			fmt.Sprintf("%d of %d, any not ended: %v, %v", len(pods.Items), e.pods, running, err)
	})
	for _, p := range pods.Items {
		text := fmt.Sprint(p.Labels, p.Annotations, p.Spec)
		if strings.Contains(text, v1alpha1.Prefix+"gang") || strings.Contains(text, "/run/holdfast") {
			t.Errorf("pod %s carries something of Holdfast's: %s", p.Name, text)
		}
		if p.Spec.SchedulerName != e.scheduler {
			t.Errorf("pod %s is scheduled by %s", p.Name, p.Spec.SchedulerName)
		}
	}
	gangs := &v1alpha1.GangList{}
	if err := c.Client().List(ctx, gangs, client.InNamespace(namespace)); err != nil || len(gangs.Items) != 0 {
		t.Errorf("%d gangs: %v", len(gangs.Items), err)
	}
	if e.pod == "" {
		return
	}
	if out, err := c.RunKubectl(ctx, "logs", "-n", namespace, e.pod); err != nil || !strings.Contains(out, e.says) {
		t.Errorf("%v: pod %s printed %q, not %q", err, e.pod, out, e.says)
	}
}

// loadSendrecv builds the image of training-operator's example.
func loadSendrecv(ctx context.Context, c *harness.Cluster) error {
	script, err := operators.TrainingOperator.File(ctx, c.Source, "examples/pytorch/smoke-dist/dist_sendrecv.py")
	if err != nil {
		return err
	}
	img, err := image.Base(c.Spec().PythonDir)
	if err != nil {
		return err
	}
	img.Name, img.Entrypoint, img.Cmd = sendrecv, []string{"/opt/holdfast-python/venv/bin/python3", "/dist_sendrecv.py"}, nil
	img.Files = append(img.Files, image.File{Path: "/dist_sendrecv.py", Mode: 0o644, Content: script})
	return c.Load(ctx, img)
}

// changePods hands every pod's specification within an object to a function.
func changePods(value any, change func(map[string]any)) {
	switch v := value.(type) {
	case map[string]any:
		if _, ok := v["containers"]; ok {
			change(v)
			return
		}
		for _, inner := range v {
			changePods(inner, change)
		}
	case []any:
		for _, inner := range v {
			changePods(inner, change)
		}
	}
}

// containers are those of a pod's specification.
func containers(spec map[string]any) []map[string]any {
	var out []map[string]any
	for _, c := range spec["containers"].([]any) {
		out = append(out, c.(map[string]any))
	}
	return out
}
