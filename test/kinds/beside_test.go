package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/test/harness"
)

// lightLine trains without PyTorch; %d is the number of pods.
const lightLine = "torchrun --nnodes=%d --nproc-per-node=1 --master-addr=none --master-port=29500 --no-python " +
	interpreter + " -u /trainer/trainer.py 0.2 65536"

// subjectOf returns the kind of that name.
func subjectOf(t *testing.T, name string) subject {
	t.Helper()
	for _, s := range subjects() {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("no subject %s", name)
	return subject{}
}

// beside creates a job that trains beside others; change alters the example further.
func beside(
	ctx context.Context,
	t *testing.T,
	w *world,
	s subject,
	scheduler, suffix string,
	change func(*unstructured.Unstructured),
) *cell {
	t.Helper()
	obj, _, err := s.object(ctx, w.Cluster, scheduler, suffix, fmt.Sprintf(lightLine, s.pods))
	if err != nil {
		t.Fatal(err)
	}
	change(obj)
	create(ctx, t, w.Cluster, obj)
	return &cell{subject: s, Cluster: w.Cluster, scheduler: scheduler, job: obj.GetName()}
}

func create(ctx context.Context, t *testing.T, c *harness.Cluster, obj *unstructured.Unstructured) {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.KubectlIn(ctx, string(text), "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// begins waits for the first steps of the job, and keeps its pods and what its own controller has counted.
func (p *cell) begins(ctx context.Context, t *testing.T) {
	t.Helper()
	p.shape = p.trains(ctx, t, 1)
	p.counted, p.groups = p.counts(ctx, t), p.podGroups(ctx, t)
}

// evicted evicts the pod of a slot, as kubectl drain does.
func (p *cell) evicted(ctx context.Context, t *testing.T, slot int) {
	t.Helper()
	a := p.shape.Assignments[slot]
	evict(ctx, t, p.Cluster, a.Pod, a.UID)
}

// evict evicts a pod: it repeats the request until the API server accepts it.
func evict(ctx context.Context, t *testing.T, c *harness.Cluster, pod, uid string) {
	t.Helper()
	until(ctx, t, c, "pod "+pod+" is evicted", func(ctx context.Context) (bool, string) {
		err := c.Kube().PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pod},
			DeleteOptions: metav1.NewPreconditionDeleteOptions(uid),
		})
		return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err), fmt.Sprint(err)
	})
}

// remove deletes the object of a job and waits until its pods are gone.
func (p *cell) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, err := p.RunKubectl(ctx, "delete", p.resource+"/"+p.job, "-n", namespace, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, p.Cluster, "the pods of "+p.job+" are gone", func(ctx context.Context) (bool, string) {
		pods, err := podsOf(ctx, p.Cluster, p.job)
		return err == nil && len(pods) == 0, fmt.Sprintf("%d left, %v", len(pods), err)
	})
}

// podsOf returns the names of the pods of an object whose names begin with its name, and their UIDs.
func podsOf(ctx context.Context, c *harness.Cluster, job string) (map[string]types.UID, error) {
	list, err := c.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := map[string]types.UID{}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Name, job) {
			pods[p.Name] = p.UID
		}
	}
	return pods, nil
}

// plain returns the object without Holdfast's annotations, whose pods only wait.
func plain(ctx context.Context, t *testing.T, w *world, s subject, scheduler, suffix string) *unstructured.Unstructured {
	t.Helper()
	obj, _, err := s.object(ctx, w.Cluster, scheduler, suffix, "true")
	if err != nil {
		t.Fatal(err)
	}
	obj.SetAnnotations(nil)
	changePods(obj.Object, func(spec map[string]any) {
		main := containers(spec)[0]
		main["command"] = []any{"sleep", "3600"}
		delete(main, "resources")
	})
	return obj
}
