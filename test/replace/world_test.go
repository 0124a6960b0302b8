package replace

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/story"
)

const (
	namespace = "replace"
	// patience is how long anything may take on a busy machine.
	patience = 90 * time.Second
)

// world is a cluster of three nodes with Holdfast on it.
type world struct {
	*story.World
	cluster *devcluster.Cluster
	births  *births
}

func install(ctx context.Context, t *testing.T) *world {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := devcluster.Start(t, devcluster.Options{Name: "replace", Nodes: 3})
	w := &world{cluster: c}
	w.World, err = story.NewWorld(story.Options{Kubeconfig: c.Kubeconfig(), Kubectl: filepath.Join(c.Spec().BinDir(), "kubectl"), Source: source, Out: os.Stderr,
		LoadImages: func(ctx context.Context) error {
			return story.LoadImages(ctx, filepath.Join(source, "bin/holdfast-dev"), c.Name(), source)
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Install(ctx); err != nil {
		w.dump(ctx)
		t.Fatal(err)
	}
	// Verdicts are this test's to give: the daemons, which would give their own, are taken away.
	if _, err := w.RunKubectl(ctx, "delete", "daemonset", "-n", v1alpha1.NodeNamespace, "--all", "--ignore-not-found"); err != nil {
		t.Fatal(err)
	}
	trainer, err := os.ReadFile("testdata/trainer.py")
	if err != nil {
		t.Fatal(err)
	}
	claim := func(name, class string, mode corev1.PersistentVolumeAccessMode) client.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: ptr.To(class),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "trainer"}, Data: map[string]string{"trainer.py": string(trainer)}},
		claim("python", "holdfast-python", corev1.ReadOnlyMany),
		claim("shared", layout.SharedStorageClass, corev1.ReadWriteMany),
	} {
		if err := w.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	w.births = follow(ctx, t, c)
	return w
}

// trainJob is a job of two pods of one rank, each with a node for itself.
func trainJob(name string, policy corev1.RestartPolicy, pause string, annotations map[string]string) *batchv1.Job {
	const command = "exec torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX --master-addr=none --master-port=29500 " +
		"--no-python /opt/holdfast-python/venv/bin/python3 -u /trainer/trainer.py "
	all := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationStandbys: "off"}
	for k, v := range annotations {
		all[k] = v
	}
	indexed := batchv1.IndexedCompletion
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("192Mi"), "nvidia.com/gpu": resource.MustParse("2")}
	requests := limits.DeepCopy()
	requests[corev1.ResourceCPU] = resource.MustParse("50m")
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: all},
		Spec: batchv1.JobSpec{Completions: ptr.To(int32(2)), Parallelism: ptr.To(int32(2)), CompletionMode: &indexed, BackoffLimit: ptr.To(int32(0)),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: policy, TerminationGracePeriodSeconds: ptr.To(int64(20)),
				SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000)), RunAsGroup: ptr.To(int64(1000)), RunAsNonRoot: ptr.To(true)},
				Containers: []corev1.Container{{
					Name: "trainer", Image: layout.BaseImage, Command: []string{"bash", "-c", command + pause + " 65536"},
					Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits},
					VolumeMounts: []corev1.VolumeMount{{Name: "trainer", MountPath: "/trainer"},
						{Name: "python", MountPath: "/opt/holdfast-python", ReadOnly: true}},
				}},
				Volumes: []corev1.Volume{
					{Name: "trainer", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "trainer"}}}},
					{Name: "python", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "python", ReadOnly: true}}},
				},
			}}},
	}
}

// shape is what a job's members are at one moment, by slot.
type shape struct {
	generation int64
	seats      []seat
}

// seat is the pod of one slot.
type seat struct {
	pod, uid, node, container string
	restarts                  int32
}

func (w *world) gang(ctx context.Context, job string) (*v1alpha1.Gang, error) {
	g := &v1alpha1.Gang{}
	err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: job}, g)
	return g, err
}

// pods are all pods of a job, those that were replaced apart.
func (w *world) pods(ctx context.Context, job string) (members, replaced []corev1.Pod, err error) {
	list := &corev1.PodList{}
	if err := w.Client().List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelGang: job}); err != nil {
		return nil, nil, err
	}
	for _, p := range list.Items {
		if p.Labels[v1alpha1.LabelReplaced] != "" {
			replaced = append(replaced, p)
		} else {
			members = append(members, p)
		}
	}
	return members, replaced, nil
}

// runs waits until the job runs a generation from the given one on, in which steps are made, and returns its shape.
func (w *world) runs(ctx context.Context, job string, generation int64) (shape, error) {
	s := shape{}
	err := w.Until(ctx, fmt.Sprintf("%s runs generation %d", job, generation), patience, func(ctx context.Context) (bool, string) {
		g, err := w.gang(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		members, _, err := w.pods(ctx, job)
		if err != nil {
			return false, err.Error()
		}
		s = shape{seats: make([]seat, g.Spec.Members)}
		for _, p := range members {
			i := slices.Index([]string{"0", "1"}, p.Labels[batchv1.JobCompletionIndexAnnotation])
			if i < 0 || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || len(p.Status.ContainerStatuses) == 0 {
				continue
			}
			c := p.Status.ContainerStatuses[0]
			s.seats[i] = seat{p.Name, string(p.UID), p.Spec.NodeName, c.ContainerID, c.RestartCount}
		}
		r := g.Status.Run
		if r == nil {
			return false, "no generation yet"
		}
		s.generation = r.Generation
		full := !slices.ContainsFunc(s.seats, func(s seat) bool { return s.container == "" })
		seen := fmt.Sprintf("generation %d %s step %d restored %d, phase %s, doomed %d, seats %+v: %s", r.Generation, r.State, r.Progress.Step, r.RestoreStep, g.Status.Phase, len(r.Doomed), s.seats, says(g))
		return full && r.Generation >= generation && r.State == v1alpha1.RunRunning && len(r.Doomed) == 0 && r.Progress.Step > r.RestoreStep && g.Status.Phase == v1alpha1.PhaseRunning, seen
	})
	return s, err
}

// says is what the Gang says of whether it runs.
func says(g *v1alpha1.Gang) string {
	for _, c := range g.Status.Conditions {
		if c.Type == v1alpha1.ConditionRunning {
			return c.Message
		}
	}
	return ""
}

// replacedOnce demands that between two moments exactly the pods of some slots were replaced, that nobody else noticed, and that
// the Job counted nothing.
func (w *world) replacedOnce(ctx context.Context, t *testing.T, job string, before, after shape, slots ...int) {
	t.Helper()
	if after.generation != before.generation+1 {
		t.Errorf("generation %d became %d", before.generation, after.generation)
	}
	for i := range after.seats {
		was, is := before.seats[i], after.seats[i]
		if slices.Contains(slots, i) {
			if was.uid == is.uid {
				t.Errorf("pod %s of slot %d was not replaced", is.pod, i)
			}
		} else if was != is {
			t.Errorf("slot %d was to stay as it is: %+v became %+v", i, was, is)
		}
		if is.restarts != 0 {
			t.Errorf("the container of %s was restarted %d times", is.pod, is.restarts)
		}
	}
	w.unharmed(ctx, t, job)
}

// unharmed demands that the Job counted no failure.
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
func (w *world) start(ctx context.Context, t *testing.T, job *batchv1.Job) shape {
	t.Helper()
	if err := w.Client().Create(ctx, job); err != nil {
		t.Fatal(err)
	}
	s, err := w.runs(ctx, job.Name, 1)
	if err != nil {
		w.dump(ctx)
		t.Fatal(err)
	}
	return s
}

// end deletes a job and waits until nothing of it is left, neither pods that it has nor pods that it had.
func (w *world) end(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Error(err)
	}
	if err := w.left(ctx, name, 0); err != nil {
		t.Error(err)
	}
}

// left waits until so many pods of a gang are left, none of them replaced.
func (w *world) left(ctx context.Context, name string, n int) error {
	return w.Until(ctx, fmt.Sprintf("%d pods of %s are left, none of them replaced", n, name), patience, func(ctx context.Context) (bool, string) {
		members, replaced, err := w.pods(ctx, name)
		var seen []string
		for _, p := range append(members, replaced...) {
			seen = append(seen, fmt.Sprintf("%s on %s %v %v %v", p.Name, p.Spec.NodeName, p.DeletionTimestamp, p.Finalizers, p.Labels))
		}
		return err == nil && len(members) == n && len(replaced) == 0, strings.Join(seen, "; ")
	})
}

// sicken gives a Node the verdict that a daemon gives a node which is of no use any more; heal takes it back. What follows from it is
// decided by the controller of nodes.
func (w *world) sicken(ctx context.Context, node string) error {
	text, err := json.Marshal(v1alpha1.NodeHealth{Action: v1alpha1.ActionEvict, Cause: "TestFault", Message: "the test says so", Since: metav1.NowMicro()})
	if err != nil {
		return err
	}
	return w.onNode(ctx, node, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationHealth, string(text))
	})
}

func (w *world) heal(ctx context.Context, node string) error {
	if err := w.onNode(ctx, node, func(n *corev1.Node) { delete(n.Annotations, v1alpha1.AnnotationHealth) }); err != nil {
		return err
	}
	return w.Until(ctx, node+" takes new pods", patience, func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		err := w.Client().Get(ctx, client.ObjectKey{Name: node}, n)
		return err == nil && n.Annotations[v1alpha1.AnnotationOutage] == "" && len(n.Spec.Taints) == 0, fmt.Sprintf("%v %v %v", n.Annotations, n.Spec.Taints, err)
	})
}

func (w *world) onNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	return w.Until(ctx, "writing node "+name, patience, func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		if err := w.Client().Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
			return false, err.Error()
		}
		change(n)
		err := w.Client().Update(ctx, n)
		return err == nil, fmt.Sprint(err)
	})
}

// dump prints what people would look at.
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
