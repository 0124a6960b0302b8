// Package controller keeps one Gang per opted-in Job and its status current. It promises: a Gang is created only
// for a Job that was opted in at its creation; it writes only its own part of the status; a restart loses nothing,
// because all its state is read again; and events on the Job and its Gang report each change of the condition
// Placed. status.Assess computes the content of the status.
package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/settings"
)

// FieldManager owns a Gang's spec and this controller's part of its status.
const FieldManager = "holdfast-gang"

const (
	// figuresEvery bounds how often figures alone (step, ages, goodput) are written.
	figuresEvery = 5 * time.Second
	// refreshEvery is how often the figures of a gang that runs are looked at without an event.
	refreshEvery = 30 * time.Second
	// retakeAfter is how long to wait for the Gang of a former Job of the same name to be collected.
	retakeAfter = time.Second
	// workers is how many gangs are looked at at a time: each waits for the API server, and a rack that dies is many gangs.
	workers = 8
)

// sideBySide is how gangs are looked at; the queue gives one gang to one worker at a time.
var sideBySide = controller.Options{MaxConcurrentReconciles: workers}

// Options of New; all must be set.
type Options struct {
	Client client.Client
	// Live reads past the cache, which holds only pods of gangs that are not only observed.
	Live client.Reader
	// ByGang is the index of the cache's pods by gang: a label selector would compare all pods of the namespace.
	ByGang string
	// MaxGangs limits the Gangs of a namespace; 0: no limit. Admission refuses Jobs beyond it, and this package those that were
	// created at the same time.
	MaxGangs int
	Recorder events.EventRecorder
	// Now is the clock.
	Now func() time.Time
}

// Controller is the reconciler of Jobs.
type Controller struct {
	Options
	metrics *metrics

	mu sync.Mutex
	// written is when a Gang's status was last written, and told what its Job's people heard last; both are
	// guarded by mu. To lose the first costs one write; the second bridges a cache that is behind.
	written  map[types.UID]time.Time
	notified map[types.NamespacedName]string
	// had is which Job of a name was seen with its Gang: should that be deleted, it is made anew, however full the namespace is.
	had map[types.NamespacedName]types.UID // guarded by mu
	// refusals by Job, as they were looked up last. Guarded by mu.
	refusals map[types.NamespacedName]refusal
	// requests by Job, as they were looked at last. Guarded by mu; to lose them costs a look.
	requests map[types.NamespacedName]asked
	// groups are the PodGroups of gangs that Volcano places, by Job, as they were looked at last. Guarded by mu; to lose them costs a look.
	groups map[types.NamespacedName]handed
}

// New returns a Controller.
func New(o Options) *Controller {
	return &Controller{
		Options:  o,
		metrics:  newMetrics(),
		written:  map[types.UID]time.Time{},
		notified: map[types.NamespacedName]string{},
		had:      map[types.NamespacedName]types.UID{},
		refusals: map[types.NamespacedName]refusal{},
		requests: map[types.NamespacedName]asked{},
		groups:   map[types.NamespacedName]handed{},
	}
}

// SetupWithManager registers the reconciler; it runs only on the leader.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := c.metrics.register(ctrlmetrics.Registry); err != nil {
		return err
	}
	admitted := predicate.NewPredicateFuncs(func(o client.Object) bool {
		job, ok := o.(*batchv1.Job)
		if !ok {
			return false
		}
		_, ok = settings.AdmittedJob(job)
		return ok
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("gang").
		For(&batchv1.Job{}, builder.WithPredicates(admitted)).
		Watches(&v1alpha1.Gang{}, &handler.EnqueueRequestForObject{}). // of the same name
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(jobOfPod)).
		WithOptions(sideBySide).
		Complete(c)
}

// jobOfPod names the Job to look at when a pod of it changed.
func jobOfPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Labels[v1alpha1.LabelGang] == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang]}}}
}

// Reconcile reads the objects of one Job's gang, computes its status and writes it.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	job := &batchv1.Job{}
	if err := c.Client.Get(ctx, req.NamespacedName, job); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
			c.metrics.forget(req.NamespacedName)
			return reconcile.Result{}, c.collect(ctx, req.NamespacedName, "")
		}
		return reconcile.Result{}, err
	}
	j, ok := settings.AdmittedJob(job)
	if job.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if !ok {
		return reconcile.Result{}, c.collect(ctx, req.NamespacedName, job.UID)
	}
	g, err := c.ensure(ctx, job, j)
	if errors.Is(err, errFull) {
		return reconcile.Result{RequeueAfter: refreshEvery}, nil
	}
	if err != nil || g == nil {
		return reconcile.Result{RequeueAfter: retakeAfter}, err
	}
	c.noteGang(job)
	c.metrics.exists(req.NamespacedName)
	if j.Settings.Observe {
		return c.observe(ctx, g, job, j)
	}
	pods := &corev1.PodList{} // the cache's own, which nobody may change
	if err := c.Client.List(
		ctx,
		pods,
		client.InNamespace(job.Namespace),
		client.MatchingFields{c.ByGang: job.Name},
		client.UnsafeDisableDeepCopy,
	); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the pods of Job %s: %w", req, err)
	}
	now := c.Now()
	c.metrics.show(g, now)
	known := status.GatherJobGang(g, job, j, pods.Items)
	missing := !known.View.JobEnded && !ptr.Deref(job.Spec.Suspend, false) && len(known.View.Members) < known.View.Size
	if missing {
		if known.View.Refused, err = c.refused(ctx, job, pods.Items, now); err != nil { // all else is said without
			log.FromContext(ctx).Error(err, "querying why a pod is missing")
		}
	}
	again := c.outside(ctx, g, job, j, &known, pods.Items, now)
	result, err := c.write(ctx, g, job, statusOf(g, known, status.Assess(known.View), now), now)
	if missing && (again == 0 || again > refusedAgain) {
		again = refusedAgain
	}
	if again > 0 && err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > again) {
		result.RequeueAfter = again
	}
	return result, err
}

// outside sees to what a gang has in other projects' APIs, and adds to what is known of it what they say; again is when to look again.
func (c *Controller) outside(
	ctx context.Context, g *v1alpha1.Gang, job *batchv1.Job, j settings.Job, known *status.JobGang, pods []corev1.Pod, now time.Time,
) (again time.Duration) {
	known.View.Provisioning, again = c.provision(ctx, g, job, j.Settings.ProvisioningClass, known.View, pods, now)
	answer, note, look := c.handOver(ctx, g, job, known.View, pods, now)
	if answer == nil {
		return again
	}
	known.View.Answer = *answer
	if note != "" {
		known.Notes = append(known.Notes, note)
	}
	return look
}

// ensure returns the Job's Gang, made or corrected if need be; nil while the name is held by another's.
func (c *Controller) ensure(ctx context.Context, job *batchv1.Job, j settings.Job) (*v1alpha1.Gang, error) {
	want := gangSpec(job, j)
	g := &v1alpha1.Gang{}
	err := c.Client.Get(ctx, client.ObjectKeyFromObject(job), g)
	if apierrors.IsNotFound(err) {
		if err := c.room(ctx, job); err != nil {
			return nil, err
		}
		g = &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}, Spec: want}
		if err := controllerutil.SetControllerReference(job, g, c.Client.Scheme()); err != nil {
			return nil, fmt.Errorf("making Job %s the owner of its Gang: %w", job.Name, err)
		}
		if err := c.Client.Create(ctx, g, client.FieldOwner(FieldManager)); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return nil, nil // the cache is behind
			}
			return nil, fmt.Errorf("creating the Gang of Job %s/%s: %w", job.Namespace, job.Name, err)
		}
		return g, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Gang of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	if !metav1.IsControlledBy(g, job) {
		log.FromContext(ctx).Info("the Gang of this name belongs to another Job; waiting for it to be collected", "gang", g.Name)
		return nil, c.collect(ctx, client.ObjectKeyFromObject(job), job.UID)
	}
	if !equality.Semantic.DeepEqual(g.Spec, want) {
		before := g.DeepCopy()
		g = before.DeepCopy()
		g.Spec = want
		if err := c.Client.Patch(ctx, g, client.MergeFrom(before), client.FieldOwner(FieldManager)); err != nil {
			return nil, fmt.Errorf("correcting the Gang of Job %s/%s: %w", job.Namespace, job.Name, err)
		}
	}
	return g, nil
}

// collect deletes a Gang without an owner: its Job was deleted with --cascade=orphan. live is the Job of that name, if there is one.
func (c *Controller) collect(ctx context.Context, name types.NamespacedName, live types.UID) error {
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, name, g); err != nil {
		return client.IgnoreNotFound(err)
	}
	if len(g.OwnerReferences) > 0 || g.Spec.JobRef.UID == string(live) {
		return nil
	}
	err := c.Client.Delete(ctx, g, client.Preconditions{UID: &g.UID, ResourceVersion: &g.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting Gang %s, whose Job was deleted without it: %w", name, err)
	}
	return nil
}

// errFull: the namespace has as many Gangs as it may have.
var errFull = errors.New("the namespace has reached its limit of Gangs")

// room is errFull, and tells the Job's user, where the namespace has as many Gangs as it may have. A Job that had its Gang may
// be running: it gets another one, for without it nobody sees to its ranks.
func (c *Controller) room(ctx context.Context, job *batchv1.Job) error {
	if c.MaxGangs <= 0 || c.hadGang(job) {
		return nil
	}
	gangs := &v1alpha1.GangList{}
	if err := c.Client.List(ctx, gangs, client.InNamespace(job.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("counting the Gangs of namespace %s: %w", job.Namespace, err)
	}
	if len(gangs.Items) < c.MaxGangs {
		return nil
	}
	if c.noteNews(client.ObjectKeyFromObject(job), v1alpha1.ReasonTooManyGangs) {
		c.Recorder.Eventf(job, nil, corev1.EventTypeWarning, v1alpha1.ReasonTooManyGangs, "Create", "this Job has no Gang, and its ranks do not start: the namespace has %d Gangs, the limit is %d; delete Jobs that are over", len(gangs.Items), c.MaxGangs)
	}
	return errFull
}

// gangSpec is the spec of the Gang of an admitted Job.
func gangSpec(job *batchv1.Job, j settings.Job) v1alpha1.GangSpec {
	spec := v1alpha1.GangSpec{
		JobRef: v1alpha1.JobReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: job.Name, UID: string(job.UID)},
		Members:    j.Members,
		StateBytes: j.Settings.StateBytes,
	}
	if j.Settings.StorageClaim != "" {
		spec.Storage = &v1alpha1.GangStorage{Claim: j.Settings.StorageClaim, IntervalSeconds: int32(j.Settings.StorageInterval / time.Second),
			Keep: j.Settings.Keep, KeepEverySeconds: int32(j.Settings.KeepEvery / time.Second), PinWish: settings.PinWishOfJob(job)}
		for _, m := range settings.PinsOfJob(job) {
			spec.Storage.Pins = append(spec.Storage.Pins, v1alpha1.Checkpoint{Step: m.Step, Generation: m.Generation})
		}
	}
	return spec
}
