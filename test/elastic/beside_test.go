package elastic

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

// queues is a queue of Kueue with room for several jobs.
const queues = `
{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: any}}
---
{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, metadata: {name: all}, spec: {namespaceSelector: {}, resourceGroups: [{
  coveredResources: [cpu, memory, nvidia.com/gpu], flavors: [{name: any, resources: [
    {name: cpu, nominalQuota: 8}, {name: memory, nominalQuota: 16Gi}, {name: nvidia.com/gpu, nominalQuota: 8}]}]}]}}
---
{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: gpus, namespace: ` + namespace + `}, spec: {clusterQueue: all}}
`

// quota is what Kueue has admitted of a namespace, and the usage of the whole queue.
type quota struct {
	workloads []string
	count     int64
	usage     []any
}

// besideKueue: Kueue admits the job as one Workload, whose usage is that of all pods, while the job goes on with fewer and after it has
// taken the pod in again. Kueue counts the missing pod as not ready, which the Gang and explain say, and does not suspend the Job.
func besideKueue(ctx context.Context, t *testing.T, w *world) {
	if err := operators.Kueue.Install(ctx, w.Cluster, w.Nodes()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := w.KubectlIn(ctx, queues, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	j := w.more(w.command("torch_trainer.py"))
	j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "gpus"}
	w.create(ctx, t, j)
	w.until(ctx, t, "all ranks train", trains(1, pods, 5))
	w.ready(ctx, t, "True", "")
	first := w.quota(ctx, t)
	if len(first.workloads) != 1 || first.count != pods || !strings.Contains(fmt.Sprint(first.usage), "nvidia.com/gpu total:6]") {
		t.Fatalf("admitted: %+v", first)
	}

	lost := w.nodeOf(ctx, t, 1)
	w.cut(ctx, t, lost)
	fewer := w.until(ctx, t, "goes on with fewer", trains(2, pods-1, 3))
	w.ready(ctx, t, "False", "WaitForRecovery")
	const says = "Kueue (queue gpus) counts 1 pod as not ready"
	w.says(ctx, t, v1alpha1.ReasonRunsWithFewer, says)
	if text, err := w.Explain(ctx, namespace, w.job); err != nil || !strings.Contains(text, says) {
		t.Errorf("explain does not say that %s: %v\n%s", says, err, text)
	}
	if now := w.quota(ctx, t); !reflect.DeepEqual(now, first) {
		t.Errorf("with fewer pods: %+v\nwith all: %+v", now, first)
	}

	w.mend(ctx, t, lost)
	grew(t, w.until(ctx, t, "takes the pod in again", trains(fewer.Generation+1, pods, 3)))
	w.ready(ctx, t, "True", "")
	if now := w.quota(ctx, t); !reflect.DeepEqual(now, first) {
		t.Errorf("with all pods again: %+v\nbefore: %+v", now, first)
	}
	w.finish(ctx, t)
	if err := w.Until(ctx, "the quota is given back", eventually.Timeout, func(context.Context) (bool, string) {
		usage := fmt.Sprint(w.quota(ctx, t).usage)
		return strings.Contains(usage, "nvidia.com/gpu total:0]"), usage
	}); err != nil {
		t.Error(err)
	}
}

// kueue lists Kueue's objects of a kind.
func (w *world) kueue(ctx context.Context, t *testing.T, kind string) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: kind + "List"})
	if err := w.Client().List(ctx, list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// quota reads what Kueue has admitted.
func (w *world) quota(ctx context.Context, t *testing.T) (q quota) {
	t.Helper()
	for _, u := range w.kueue(ctx, t, "Workload") {
		q.workloads = append(q.workloads, string(u.GetUID()))
		sets, _, _ := unstructured.NestedSlice(u.Object, "status", "admission", "podSetAssignments")
		for _, set := range sets {
			n, _, _ := unstructured.NestedInt64(set.(map[string]any), "count")
			q.count += n
		}
	}
	for _, u := range w.kueue(ctx, t, "ClusterQueue") {
		used, _, _ := unstructured.NestedSlice(u.Object, "status", "flavorsUsage")
		q.usage = append(q.usage, used...)
	}
	return q
}

// ready waits until the one Workload has condition PodsReady with this status, and reason if one is given; it was never evicted.
func (w *world) ready(ctx context.Context, t *testing.T, status, reason string) {
	t.Helper()
	if err := w.Until(ctx, "PodsReady is "+status, eventually.Timeout, func(ctx context.Context) (bool, string) {
		all := w.kueue(ctx, t, "Workload")
		if len(all) != 1 {
			return false, fmt.Sprintf("%d Workloads", len(all))
		}
		var of struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(all[0].Object, &of); err != nil {
			return false, err.Error()
		}
		holds := false
		for _, c := range of.Status.Conditions {
			switch c.Type {
			case "PodsReady":
				holds = string(c.Status) == status && (reason == "" || c.Reason == reason)
			case "Evicted":
				t.Errorf("Kueue has evicted the Workload: %s: %s", c.Reason, c.Message)
			}
		}
		return holds, fmt.Sprintf("%+v", of.Status.Conditions)
	}); err != nil {
		t.Fatal(err)
	}
}

// venv has torchvision; hack/launchers.sh makes it.
const venv = "/opt/holdfast-launchers"

// imagenet is PyTorch Elastic's own example, for CPUs and gloo, from the module of training-operator. It keeps its checkpoint on the pod's
// disk, and gives it to pods that have none.
const imagenet = "examples/pytorch/elastic/imagenet/imagenet.py"

// upstreamExample is PyTorch Elastic's own example, unchanged, with torchrun --nnodes=1:3 alone. It goes on with fewer pods, without its
// rank 0, and takes the pod in again, from its own checkpoint, with no epoch done again.
func upstreamExample(ctx context.Context, t *testing.T, w *world) {
	if _, err := os.Stat(filepath.Join(venv, ".ready")); err != nil {
		t.Fatalf("there is no %s: hack/launchers.sh makes it", venv)
	}
	script, err := operators.TrainingOperator.File(ctx, w.Source, imagenet)
	if err != nil {
		t.Fatal(err)
	}
	volume, files := imageFolder(t)
	files.Data = map[string]string{"imagenet.py": string(script)}
	if err := w.Client().Create(ctx, files); err != nil {
		t.Fatal(err)
	}
	j := w.more([]string{venv + "/bin/torchrun", fmt.Sprintf("--nnodes=1:%d", pods), "--nproc-per-node=1", "/example/imagenet.py",
		"--arch=shufflenet_v2_x0_5", "--epochs=1000000", "--batch-size=4", "/example"})
	delete(j.Annotations, v1alpha1.AnnotationMinPods)
	delete(j.Annotations, v1alpha1.AnnotationStateSize)
	j.Annotations[v1alpha1.AnnotationGrow] = v1alpha1.GrowWithRestart
	spec := &j.Spec.Template.Spec
	harness.HostFolder(spec, "venv", venv, venv)
	spec.Volumes = append(spec.Volumes, volume)
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/example"})
	w.create(ctx, t, j)

	w.until(ctx, t, "all ranks train", withPods(1, pods))
	w.example(ctx, t, pods, 0)
	lost := w.nodeOf(ctx, t, 0)
	w.cut(ctx, t, lost)
	fewer := w.until(ctx, t, "goes on without rank 0", withPods(2, pods-1))
	from := w.example(ctx, t, pods-1, 1)
	w.mend(ctx, t, lost)
	w.until(ctx, t, "takes the pod in again", withPods(fewer.Generation+1, pods))
	w.Say("%s: went on from epoch %d, and with all pods from %d", w.job, from, w.example(ctx, t, pods, from+1))
}

// imageFolder returns some images of two classes, to train and to validate with, and the volume that has them as such a script expects.
func imageFolder(t *testing.T) (corev1.Volume, *corev1.ConfigMap) {
	t.Helper()
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "example"}, BinaryData: map[string][]byte{}}
	items := []corev1.KeyToPath{{Key: "imagenet.py", Path: "imagenet.py"}}
	for set, n := range map[string]int{"train": 12, "val": 2} {
		for class, shade := range map[string]uint8{"dark": 40, "light": 200} {
			for i := range n {
				img := image.NewGray(image.Rect(0, 0, 8, 8))
				for at := range img.Pix {
					img.Pix[at] = shade + uint8((at*(i+1))%50)
				}
				text := &bytes.Buffer{}
				if err := png.Encode(text, img); err != nil {
					t.Fatal(err)
				}
				key := fmt.Sprintf("%s-%s-%d.png", set, class, i)
				files.BinaryData[key] = text.Bytes()
				items = append(items, corev1.KeyToPath{Key: key, Path: fmt.Sprintf("%s/%s/%d.png", set, class, i)})
			}
		}
	}
	volume := harness.ConfigVolume(files.Name)
	volume.ConfigMap.Items = items
	return volume, files
}

// withPods holds once a gang with one rank per pod runs this generation or a later one with so many pods.
func withPods(generation int64, n int) func(*v1alpha1.Gang) bool {
	return func(g *v1alpha1.Gang) bool {
		r := g.Status.Run
		return r != nil && g.Status.Phase == v1alpha1.PhaseRunning && r.Generation >= generation && pods-len(r.Out) == n &&
			int(r.Progress.Ranks) == n
	}
}

// told is what the example prints of its epochs.
var told = regexp.MustCompile(`=> (start_epoch): (\d+)|=> (saved) checkpoint for epoch (\d+)`)

// example waits until so many pods have begun at the same epoch, least or later, and have saved two more. It returns that epoch. No pod
// does an epoch again that it has saved.
func (w *world) example(ctx context.Context, t *testing.T, n, least int) (begun int) {
	t.Helper()
	if err := w.Until(ctx, fmt.Sprintf("epochs of %d pods", n), 2*eventually.Timeout, func(ctx context.Context) (bool, string) {
		members, _, err := w.Members(ctx, namespace, w.job)
		if err != nil {
			return false, err.Error()
		}
		goes, seen := map[int]int{}, ""
		for _, p := range members {
			log, err := w.RunKubectl(ctx, "logs", "-n", namespace, p.Name)
			if err != nil {
				seen += fmt.Sprintf("%s: %v; ", p.Name, err)
				continue
			}
			start, saved := -1, -1
			for _, m := range told.FindAllStringSubmatch(log, -1) {
				if m[1] != "" {
					if start, _ = strconv.Atoi(m[2]); start <= saved {
						t.Errorf("%s begins epoch %d and has saved %d", p.Name, start, saved)
					}
				} else {
					saved, _ = strconv.Atoi(m[4])
				}
			}
			seen += fmt.Sprintf("%s began at %d and saved %d; ", p.Name, start, saved)
			if start >= least && saved >= start+1 {
				goes[start]++
			}
		}
		for start, of := range goes {
			if begun = start; of == n {
				return true, ""
			}
		}
		return false, seen
	}); err != nil {
		t.Fatal(err)
	}
	return begun
}
