package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

// The schedulers of the story.
const (
	ours    = "holdfast"
	volcano = "volcano"
)

// subject is a kind of job in the story: where its object comes from, what its own controller counts, and how its user acts on it.
type subject struct {
	name string
	kind schema.GroupVersionKind
	// resource names it to kubectl.
	resource string
	// operator is its controller's, besides Kubernetes' own and Volcano's.
	operator *operators.Operator
	// read is its example, of so many pods, each of which gets so many GPUs.
	read       func(context.Context, *harness.Cluster) ([]byte, error)
	pods, gpus int64
	// adapt makes what must differ for a scheduler, besides the pods.
	adapt func(obj map[string]any, scheduler string)
	// restarts is how often its own controller restarted it, failures all else that it would note of a failure.
	restarts func(obj map[string]any) int64
	failures func(obj map[string]any) any
	// rest stops it, or has it go on. Where that costs a restart of the kind's own, resumes says how many.
	rest    func(ctx context.Context, c *harness.Cluster, obj *unstructured.Unstructured, on bool) error
	resumes int64
	// completes and fails are what kubectl waits for.
	completes, fails string
	// unsaid is set where the kind's own controller writes why the object failed, in its own words.
	unsaid bool
}

// batchJob is as Kubernetes' documentation writes a Job whose pods have indexes.
const batchJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: example}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, containers: [{name: trainer, image: registry.example.com/train:1}]}}
`

// trainingJobSet stands for an example of JobSet's, whose module has none that trains. Each failure of one of its Jobs restarts all of it.
const trainingJobSet = `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: example}
spec:
  failurePolicy: {maxRestarts: 3}
  replicatedJobs:
  - name: leader
    template: {spec: {completions: 1, parallelism: 1, backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [
      {name: trainer, image: registry.example.com/train:1}]}}}}
  - name: workers
    replicas: 2
    template: {spec: {completions: 1, parallelism: 1, backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [
      {name: trainer, image: registry.example.com/train:1}]}}}}
`

func subjects() []subject {
	text := func(s string) func(context.Context, *harness.Cluster) ([]byte, error) {
		return func(context.Context, *harness.Cluster) ([]byte, error) { return []byte(s), nil }
	}
	return []subject{
		{
			name:      "Job",
			kind:      schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"},
			resource:  "jobs.batch",
			read:      text(batchJob),
			pods:      2,
			gpus:      2,
			adapt:     podsName,
			restarts:  func(map[string]any) int64 { return 0 },
			failures:  batchFailures,
			rest:      suspends("spec"),
			completes: "condition=Complete",
			fails:     "condition=Failed",
			unsaid:    true,
		},
		{
			name:     "VolcanoJob",
			kind:     schema.GroupVersionKind{Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job"},
			resource: "jobs.batch.volcano.sh",
			read:     pluginGuide,
			pods:     3,
			gpus:     1,
			adapt:    adaptVolcanoJob,
			restarts: func(obj map[string]any) int64 { return number(obj, "status", "retryCount") },
			failures: func(obj map[string]any) any {
				return []int64{number(obj, "status", "failed"), number(obj, "status", "version")}
			},
			rest:      commands,
			resumes:   1,
			completes: "jsonpath={.status.state.phase}=Completed",
			fails:     "jsonpath={.status.state.phase}=Failed",
		},
		{
			name:      "JobSet",
			kind:      schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"},
			resource:  "jobsets",
			operator:  operators.JobSet,
			read:      text(trainingJobSet),
			pods:      3,
			gpus:      1,
			adapt:     podsName,
			restarts:  func(obj map[string]any) int64 { return number(obj, "status", "restarts") },
			failures:  func(obj map[string]any) any { return conditions(obj) },
			rest:      suspends("spec"),
			completes: "condition=Completed",
			fails:     "condition=Failed",
		},
		{
			name:     "PyTorchJob",
			kind:     schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"},
			resource: "pytorchjobs",
			operator: operators.TrainingOperator,
			read: func(ctx context.Context, c *harness.Cluster) ([]byte, error) {
				return operators.TrainingOperator.File(ctx, c.Source, "examples/pytorch/mnist/v1/pytorch_job_mnist_gloo.yaml")
			},
			pods:      2,
			gpus:      2,
			adapt:     podsName,
			restarts:  func(obj map[string]any) int64 { return int64(len(conditions(obj, "Restarting"))) },
			failures:  pytorchFailures,
			rest:      suspends("spec", "runPolicy"),
			completes: "condition=Succeeded",
			fails:     "condition=Failed",
		},
	}
}

// pluginGuide is the example in Volcano's guide to its plugin for PyTorch.
func pluginGuide(ctx context.Context, c *harness.Cluster) ([]byte, error) {
	guide, err := operators.Volcano.File(ctx, c.Source, "docs/user-guide/how_to_use_pytorch_plugin.md")
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(guide), "```yaml\n")
	example, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		return nil, errors.New("the guide has no example")
	}
	return []byte(example), nil
}

// podsName has the pods name Volcano's scheduler; no name is ours.
func podsName(obj map[string]any, scheduler string) {
	if scheduler == volcano {
		changePods(obj, func(spec map[string]any) { spec["schedulerName"] = volcano })
	}
}

// adaptVolcanoJob leaves what admission refuses or warns of: workers that wait for their master's port would wait for ever, as no rank
// starts before all pods are there, and Volcano's scheduler would place one pod alone.
func adaptVolcanoJob(obj map[string]any, scheduler string) {
	spec := obj["spec"].(map[string]any)
	plugins := spec["plugins"].(map[string]any)
	plugins["pytorch"] = slices.DeleteFunc(plugins["pytorch"].([]any), func(argument any) bool {
		return strings.HasPrefix(argument.(string), "--wait-master")
	})
	if scheduler == volcano {
		spec["minAvailable"] = int64(3)
		return
	}
	spec["schedulerName"] = v1alpha1.SchedulerName
}

// number is one of an object's numbers, 0 where it is not there.
func number(obj map[string]any, fields ...string) int64 {
	n, _, _ := unstructured.NestedInt64(obj, fields...)
	return n
}

// conditions are an object's conditions that were ever of these types, or those that are true.
func conditions(obj map[string]any, types ...string) (found []string) {
	all, _, _ := unstructured.NestedSlice(obj, "status", "conditions")
	for _, c := range all {
		m, _ := c.(map[string]any)
		kind, status := fmt.Sprint(m["type"]), fmt.Sprint(m["status"])
		if len(types) == 0 && status == "True" || slices.Contains(types, kind) {
			found = append(found, kind+" "+status)
		}
	}
	slices.Sort(found)
	return found
}

func batchFailures(obj map[string]any) any {
	uncounted, _, _ := unstructured.NestedSlice(obj, "status", "uncountedTerminatedPods", "failed")
	return []any{number(obj, "status", "failed"), len(uncounted), number(obj, "spec", "backoffLimit"), conditions(obj)}
}

func pytorchFailures(obj map[string]any) any {
	failed := map[string]int64{}
	roles, _, _ := unstructured.NestedMap(obj, "status", "replicaStatuses")
	for role := range roles {
		failed[role] = number(obj, "status", "replicaStatuses", role, "failed")
	}
	return []any{failed, conditions(obj, "Failed", "Restarting")}
}

// suspends sets a field of that name below the given ones.
func suspends(below ...string) func(context.Context, *harness.Cluster, *unstructured.Unstructured, bool) error {
	return func(ctx context.Context, c *harness.Cluster, obj *unstructured.Unstructured, on bool) error {
		patch := map[string]any{}
		if err := unstructured.SetNestedField(patch, on, append(slices.Clone(below), "suspend")...); err != nil {
			return err
		}
		text, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		gk := obj.GroupVersionKind().GroupKind()
		name := strings.ToLower(gk.Kind) + "." + gk.Group + "/" + obj.GetName()
		_, err = c.RunKubectl(ctx, "patch", name, "-n", namespace, "--type=merge", "-p", string(text))
		return err
	}
}

// commands creates the objects that vcctl creates: commands to Volcano's controller.
func commands(ctx context.Context, c *harness.Cluster, obj *unstructured.Unstructured, on bool) error {
	action := "ResumeJob"
	if on {
		action = "AbortJob"
	} else if err := waitFor(ctx, c, "jobs.batch.volcano.sh/"+obj.GetName(), "jsonpath={.status.state.phase}=Aborted"); err != nil {
		return err
	}
	ref := map[string]any{
		"apiVersion": obj.GetAPIVersion(),
		"kind":       obj.GetKind(),
		"name":       obj.GetName(),
		"uid":        string(obj.GetUID()),
		"controller": true,
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "bus.volcano.sh/v1alpha1",
		"kind":       "Command",
		"metadata":   map[string]any{"generateName": obj.GetName() + "-", "namespace": namespace, "ownerReferences": []any{ref}},
		"action":     action,
		"target":     ref,
	})
	if err != nil {
		return err
	}
	_, err = c.KubectlIn(ctx, string(text), "create", "-f", "-")
	return err
}

// object is the example under a scheduler, its containers running a line, and what differs from the example.
func (s subject) object(
	ctx context.Context,
	c *harness.Cluster,
	scheduler, suffix, line string,
) (obj *unstructured.Unstructured, differs string, err error) {
	text, err := s.read(ctx, c)
	if err != nil {
		return nil, "", err
	}
	objects, err := operators.Decode(text)
	if err != nil || len(objects) != 1 {
		return nil, "", fmt.Errorf("the example has %d objects: %w", len(objects), err)
	}
	obj = objects[0]
	before, err := yaml.Marshal(obj.Object)
	if err != nil {
		return nil, "", err
	}
	pod := harness.TrainerPod(line, 0, s.gpus)
	main := &pod.Containers[0]
	for _, list := range []corev1.ResourceList{main.Resources.Requests, main.Resources.Limits} {
		list[corev1.ResourceMemory] = resource.MustParse("1Gi") // PyTorch
	}
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	pod.Volumes = append(pod.Volumes, harness.ClaimVolume(shared, false))
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
	if err != nil {
		return nil, "", err
	}
	changePods(obj.Object, func(spec map[string]any) {
		theirs, own := containers(spec)[0], containers(fields)[0]
		delete(theirs, "args")
		for _, key := range []string{"image", "command", "resources", "volumeMounts"} {
			theirs[key] = runtime.DeepCopyJSONValue(own[key])
		}
		spec["volumes"] = runtime.DeepCopyJSONValue(fields["volumes"])
	})
	s.adapt(obj.Object, scheduler)
	after, err := yaml.Marshal(obj.Object)
	if err != nil {
		return nil, "", err
	}
	obj.SetNamespace(namespace)
	obj.SetName(obj.GetName() + suffix)
	obj.SetAnnotations(map[string]string{
		v1alpha1.AnnotationEnabled:         "true",
		v1alpha1.AnnotationStateSize:       "1Mi",
		v1alpha1.AnnotationStandbys:        "off",
		v1alpha1.AnnotationStorageClaim:    shared,
		v1alpha1.AnnotationStorageInterval: "2s",
	})
	return obj, lines("-", before, after) + lines("+", after, before), nil
}

// lines are those of a text that another one has not.
func lines(mark string, text, other []byte) string {
	out := &strings.Builder{}
	for line := range strings.Lines(string(text)) {
		if !strings.Contains("\n"+string(other), "\n"+line) {
			out.WriteString(mark + " " + line)
		}
	}
	return out.String()
}
