package nodeoutage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/slim"
	"holdfast.dev/holdfast/test/devcluster"
)

const (
	// refusals is how many refusals to wait for: by then the Job controller has waited for 1, 2, 4 and 8 s, and waits for 16.
	refusals = 5
	// soon is less than half of those 16 s: quota and Job are checked within 2 s.
	soon = 7 * time.Second
)

// madeWithinAQuota: a quota has no room for a replacement beside the old pod. The replacement is created as soon as the old pod is gone,
// however long the Job controller would wait.
func madeWithinAQuota(w *world, c *devcluster.Cluster) {
	const name = "full"
	key := coordinator.Key{Namespace: name, Name: name}
	store, stop := w.replacer(w.permit(c), c)
	defer stop()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	w.create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "one"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}})
	eventually.Succeeds(w.t, "the quota is counted", func() error {
		q, err := w.direct.CoreV1().ResourceQuotas(name).Get(w.ctx, "one", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}, Spec: batchv1.JobSpec{
		Parallelism: ptr.To[int32](0), Completions: ptr.To[int32](1),
		CompletionMode: ptr.To(batchv1.IndexedCompletion), PodReplacementPolicy: ptr.To(batchv1.Failed),
	}}
	template := &job.Spec.Template
	template.Annotations, template.Labels = optedIn(nil), map[string]string{v1alpha1.LabelGang: name}
	template.Spec.RestartPolicy, template.Spec.NodeName = corev1.RestartPolicyNever, nodeOfQuota
	template.Spec.Containers = []corev1.Container{{Name: "train", Image: "none"}}
	w.create(job)
	key.Job = string(job.UID)
	w.create(&v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: v1alpha1.GangSpec{Members: 1, JobRef: v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: key.Job}}})
	first := w.stamped(job)
	one := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"parallelism":1}}`))
	if err := w.all().Patch(w.ctx, job, one); err != nil {
		w.t.Fatal(err)
	}
	termination := elastic.Termination{Pod: string(first.UID), Name: first.Name, Node: first.Spec.NodeName, Cause: "Test"}
	if err := store.Replace(w.ctx, key, termination); err != nil {
		w.t.Fatal(err)
	}
	eventually.Succeeds(w.t, "the Job controller waits", func() error {
		list, err := w.direct.CoreV1().Events(name).List(w.ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		n := int32(0)
		for i := range list.Items {
			n += max(1, list.Items[i].Count)
		}
		if err == nil && n < refusals {
			err = fmt.Errorf("it was refused a pod %d times", n)
		}
		return err
	})
	// No kubelet ends it.
	if err := w.direct.CoreV1().Pods(name).Delete(w.ctx, first.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		w.t.Fatal(err)
	}
	began := time.Now()
	w.podOf(name, string(first.UID))
	if took := time.Since(began); took > soon {
		w.t.Errorf("the next pod was made %v after there was room for it, want %v at most", took, soon)
	} else {
		w.t.Logf("the next pod was made %v after there was room for it", took.Round(time.Millisecond))
	}
}

// nodeOfQuota is a node without a kubelet, so that a pod stays until it is deleted with grace 0.
var nodeOfQuota = name(1)

// podOf waits for a pod of the Job with another UID than the given one.
func (w *world) podOf(job, not string) (pod *corev1.Pod) {
	w.t.Helper()
	eventually.Succeeds(w.t, "a pod of Job "+job, func() error {
		list, err := w.direct.CoreV1().Pods(job).List(w.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if pod = &list.Items[i]; string(pod.UID) != not {
				return nil
			}
		}
		return errors.New("none yet")
	})
	return pod
}

// stamped creates the pod of a Job with the stamps of admission.
func (w *world) stamped(job *batchv1.Job) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.Finalizers = job.Namespace, job.Name+"-0", []string{batchv1.JobTrackingFinalizer}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation], pod.Annotations[v1alpha1.AnnotationGangSlot] = "0", "0"
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: membership.JobVariable, Value: string(job.UID)}}
	w.create(pod)
	return pod
}

// all is a client with all rights.
func (w *world) all() client.Client {
	w.t.Helper()
	all, err := client.New(w.config, client.Options{Scheme: ours(w)})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// create creates an object with all rights.
func (w *world) create(o client.Object) {
	w.t.Helper()
	all := w.all()
	eventually.Succeeds(w.t, fmt.Sprintf("%T %s", o, o.GetName()), func() error { return all.Create(w.ctx, o) })
}

func ours(w *world) *runtime.Scheme {
	w.t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// replacer is the product's pod controller with the shipped rights; stop ends it and waits.
func (w *world) replacer(config *rest.Config, c *devcluster.Cluster) (store *elasticcontroller.Controller, stop func()) {
	w.t.Helper()
	w.gangs(c)
	ofGangs, err := labels.Parse(v1alpha1.LabelGang)
	if err != nil {
		w.t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: ours(w), Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: ofGangs}, &batchv1.Job{}: {Transform: slim.Job}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	reader, err := jobs.ForManager(mgr, kinds.Served())
	if err != nil {
		w.t.Fatal(err)
	}
	store = elasticcontroller.New(elasticcontroller.Options{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Jobs:     reader,
		Recorder: mgr.GetEventRecorder("holdfast-elastic"),
		Log:      logr.Discard(),
	})
	if err := store.SetupWithManager(mgr, noAgents{}); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		w.t.Fatal("the cache did not fill")
	}
	return store, func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the manager: %v", err)
		}
	}
}

// noAgents is a coordinator without attached agents.
type noAgents struct{}

func (noAgents) SetPendingReplacements(context.Context, coordinator.Key, []elastic.Termination) error {
	return nil
}
func (noAgents) SetPlaced(context.Context, coordinator.Key, []elastic.Placement) error   { return nil }
func (noAgents) Suspended(context.Context, coordinator.Key, []elastic.Termination) error { return nil }
func (noAgents) Over(coordinator.Key)                                                    {}
func (noAgents) SetSettings(context.Context, coordinator.Key, elastic.Settings) error    { return nil }
