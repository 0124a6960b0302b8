// Package controller creates one Gang for each job that was opted in, of any kind, and keeps the Gang's status current.
// Package gang/status computes the content of the status.
//
//   - A Gang is created only for a job that was opted in when it was created.
//   - If several jobs have the same name, one of them gets the Gang, and the others get an event.
//   - The controller writes only its own part of the status.
//   - A restarted controller reads all its state from the API server.
//   - An event on the job and on its Gang reports each change of the condition Placed.
package controller

import (
	"cmp"
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
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/pace"
	"holdfast.dev/holdfast/internal/settings"
)

// FieldManager is the field manager of a Gang's spec and of this controller's part of its status.
const FieldManager = "holdfast-gang"

const (
	// figuresEvery is the shortest interval at which a status is written if only figures changed (step, ages, goodput).
	figuresEvery = 5 * time.Second
	// countsEvery is that interval if only the state of single pods or the messages of conditions changed, for each full hundred of members
	// that the status lists, up to figuresEvery. The API server takes about 0.1 ms of processor time for each of them in each write.
	countsEvery, hundred = 100 * time.Millisecond, 100
	// refreshEvery is the interval at which the figures of a running gang are computed without an event.
	refreshEvery = 30 * time.Second
	// retakeAfter is how long to wait until the Gang of a former Job of the same name is deleted.
	retakeAfter = time.Second
	// workers is how many gangs are reconciled at once. Each waits for the API server, and the death of a rack changes many gangs.
	workers = 8
)

// sideBySide sets the number of workers. The queue gives a gang to one worker at a time.
var sideBySide = controller.Options{MaxConcurrentReconciles: workers}

// Options of New; all must be set.
type Options struct {
	Client client.Client
	// Live reads from the API server. The cache has no pods of observed gangs.
	Live client.Reader
	// Jobs reads the jobs of all kinds.
	Jobs *jobs.Reader
	// ByGang is the name of the cache's index of pods by gang. A label selector would compare all pods of the namespace.
	ByGang string
	// MaxGangs limits the Gangs of a namespace; 0: no limit. Admission refuses Jobs beyond it. The controller refuses those that were
	// created at the same time.
	MaxGangs int
	Recorder events.EventRecorder
	// Now is the clock.
	Now func() time.Time
}

// Controller reconciles jobs: one Gang for each.
type Controller struct {
	Options
	metrics *metrics

	mu sync.Mutex
	// written is when the status of a Gang was last written; notified is the last event on its job. Both are guarded by mu. If written is
	// lost, one more write is made. notified prevents a second event while the cache is outdated.
	written  map[types.UID]time.Time
	notified map[types.NamespacedName]string
	// had is the job that was seen with its Gang, by name. If that Gang is deleted, it is created again, however full the namespace is.
	had map[types.NamespacedName]types.UID // guarded by mu
	// taken has, by name, the other jobs that got an event, each with the job that has the Gang. Guarded by mu.
	taken map[types.NamespacedName]map[types.UID]types.UID
	// refusals has the last known refusal of each Job. Guarded by mu.
	refusals map[types.NamespacedName]refusal
	// requests has what was last read of each Job's request. Guarded by mu; if it is lost, the request is read again.
	requests map[types.NamespacedName]asked
	// groups has what was last read of each Job's PodGroup, where Volcano places the gang. Guarded by mu; if it is lost, the PodGroup is
	// read again.
	groups map[types.NamespacedName]handed

	pace pace.Gangs
}

// New returns a Controller.
func New(o Options) *Controller {
	return &Controller{
		Options:  o,
		metrics:  newMetrics(),
		written:  map[types.UID]time.Time{},
		notified: map[types.NamespacedName]string{},
		had:      map[types.NamespacedName]types.UID{},
		taken:    map[types.NamespacedName]map[types.UID]types.UID{},
		refusals: map[types.NamespacedName]refusal{},
		requests: map[types.NamespacedName]asked{},
		groups:   map[types.NamespacedName]handed{},
	}
}

// SetupWithManager registers the reconciler, which runs only on the leader.
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
		Watches(&corev1.Pod{}, c.pace.Events(jobOfPod)).
		WatchesRawSource(c.Jobs.Source()).
		WithOptions(sideBySide).
		Complete(c)
}

// jobOfPod returns the job to reconcile when a pod of it changed.
func jobOfPod(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Labels[v1alpha1.LabelGang] == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelGang]}}}
}

// Reconcile reads the objects of one job's gang, computes its status and writes it.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	all, err := c.Jobs.Named(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	g := &v1alpha1.Gang{}
	if err := c.Client.Get(ctx, req.NamespacedName, g); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("reading Gang %s: %w", req, err)
		}
		g = nil
	}
	job := holder(g, all)
	if unread := c.unread(ctx, g, job); unread != nil {
		log.FromContext(ctx).V(1).Info("whether the Gang's job exists is not known", "because", unread.Error())
		return reconcile.Result{RequeueAfter: refreshEvery}, nil
	}
	if job == nil {
		c.forget(req.NamespacedName)
		c.pace.Counted(req, 0)
		c.metrics.forget(req.NamespacedName)
		if g == nil {
			return reconcile.Result{}, nil
		}
		// the definition of its kind may be deleted after the job
		return reconcile.Result{RequeueAfter: refreshEvery}, c.collect(ctx, g, "")
	}
	c.emitTaken(job, all)
	if job.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	g, err = c.ensure(ctx, g, job)
	if errors.Is(err, errFull) {
		return reconcile.Result{RequeueAfter: refreshEvery}, nil
	}
	if err != nil || g == nil {
		return reconcile.Result{RequeueAfter: retakeAfter}, err
	}
	c.noteGang(job)
	c.metrics.exists(req.NamespacedName)
	if job.Admitted.Settings.Observe {
		return c.observe(ctx, g, job)
	}
	return c.assess(ctx, g, job)
}

// holder returns the job that has the Gang, or gets it: the job that the Gang names, or else the oldest; nil: there is no job.
func holder(g *v1alpha1.Gang, all []*jobs.Job) *jobs.Job {
	for _, job := range all {
		if g != nil && g.Spec.JobRef.UID == string(job.UID) {
			return job
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// unread returns why it is unknown whether the job that a Gang names exists; nil: it is known.
func (c *Controller) unread(ctx context.Context, g *v1alpha1.Gang, job *jobs.Job) error {
	if g == nil || job != nil && g.Spec.JobRef.UID == string(job.UID) {
		return nil
	}
	return c.Jobs.Unread(ctx, g.Spec.JobRef)
}

// assess computes and writes the status of a gang that is not only observed.
func (c *Controller) assess(ctx context.Context, g *v1alpha1.Gang, job *jobs.Job) (reconcile.Result, error) {
	pods := &corev1.PodList{} // objects of the cache, which must not be changed
	if err := c.Client.List(
		ctx,
		pods,
		client.InNamespace(job.Namespace),
		client.MatchingFields{c.ByGang: job.Name},
		client.UnsafeDisableDeepCopy,
	); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the pods of %s: %w", job, err)
	}
	now := c.Now()
	c.pace.Counted(reconcile.Request{NamespacedName: job.Key()}, len(pods.Items))
	c.metrics.show(g, now)
	known := status.GatherJobGang(g, jobStatus(job), pods.Items)
	missing := !known.View.JobEnded && !job.State.Suspended && len(known.View.Members) < known.View.Size
	if missing {
		why, err := c.refused(ctx, job, pods.Items, now)
		if err != nil { // the rest of the status is written without it
			log.FromContext(ctx).Error(err, "querying why a pod is missing")
		}
		known.View.Refused, known.View.Creator = why.text, why.by
	}
	again := c.outside(ctx, g, job, &known, pods.Items, now)
	result, err := c.write(ctx, g, job, statusOf(g, known, status.Assess(known.View), now), now)
	if missing && (again == 0 || again > refusedAgain) {
		again = refusedAgain
	}
	if again > 0 && err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > again) {
		result.RequeueAfter = again
	}
	return result, err
}

// jobStatus returns what the status needs of a job.
func jobStatus(job *jobs.Job) status.Job {
	return status.Job{UID: job.UID, Admitted: job.Admitted, State: job.State, Queue: settings.Queue(job)}
}

// outside handles a gang's objects in other projects' APIs, and adds their state to what is known of the gang; again is when to call it
// again.
func (c *Controller) outside(
	ctx context.Context, g *v1alpha1.Gang, job *jobs.Job, known *status.JobGang, pods []corev1.Pod, now time.Time,
) (again time.Duration) {
	known.View.Provisioning, again = c.provision(ctx, g, job, known.View, pods, now)
	said, look := c.handOver(ctx, g, job, known.View, pods, now)
	if said.answer == nil {
		return cmp.Or(look, again) // no job has both
	}
	known.View.Answer, known.View.Held = *said.answer, said.held
	if said.note != "" {
		known.Notes = append(known.Notes, said.note)
	}
	return look
}

// ensure returns the job's Gang, creating or correcting it if necessary; nil: another job's Gang still has the name. g is the present Gang.
func (c *Controller) ensure(ctx context.Context, g *v1alpha1.Gang, job *jobs.Job) (*v1alpha1.Gang, error) {
	want := gangSpec(job)
	if g == nil {
		if err := c.room(ctx, job); err != nil {
			return nil, err
		}
		g = &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}, Spec: want}
		if err := controllerutil.SetControllerReference(job.Object(), g, c.Client.Scheme()); err != nil {
			return nil, fmt.Errorf("making %s the owner of its Gang: %w", job, err)
		}
		if err := c.Client.Create(ctx, g, client.FieldOwner(FieldManager)); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return nil, nil // the cache is behind
			}
			return nil, fmt.Errorf("creating the Gang of %s: %w", job, err)
		}
		return g, nil
	}
	if !metav1.IsControlledBy(g, job.Object()) {
		log.FromContext(ctx).Info("the Gang of this name belongs to another job; waiting for it to be collected", "gang", g.Name)
		return nil, c.collect(ctx, g, job.UID)
	}
	if job.Admitted.Settings.Hang == "" {
		want.Hang = g.Spec.Hang // a job keeps the default of its creation
	}
	if !equality.Semantic.DeepEqual(g.Spec, want) {
		before := g.DeepCopy()
		g = before.DeepCopy()
		g.Spec = want
		if err := c.Client.Patch(ctx, g, client.MergeFrom(before), client.FieldOwner(FieldManager)); err != nil {
			return nil, fmt.Errorf("correcting the Gang of %s: %w", job, err)
		}
	}
	return g, nil
}

// collect deletes a Gang that Kubernetes' garbage collector leaves, because its job was deleted with --cascade=orphan or together with the
// definition of its kind. live is the UID of the present job of that name, if there is one.
func (c *Controller) collect(ctx context.Context, g *v1alpha1.Gang, live types.UID) error {
	if g.Spec.JobRef.UID == string(live) {
		return nil
	}
	if len(g.OwnerReferences) > 0 {
		if gone, err := c.Jobs.Undefined(ctx, g.Spec.JobRef); err != nil || !gone {
			return err
		}
	}
	err := c.Client.Delete(ctx, g, client.Preconditions{UID: &g.UID, ResourceVersion: &g.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting Gang %s/%s, whose job is gone: %w", g.Namespace, g.Name, err)
	}
	return nil
}

// errFull: the namespace has as many Gangs as it may have.
var errFull = errors.New("the namespace has reached its limit of Gangs")

// room returns errFull, and writes an event on the job, if the namespace has as many Gangs as it may have. A job that had a Gang gets
// another one, because its ranks may be running and need the coordinator.
func (c *Controller) room(ctx context.Context, job *jobs.Job) error {
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
	if c.noteNews(job.Key(), v1alpha1.ReasonTooManyGangs) {
		c.Recorder.Eventf(job.Object(), nil, corev1.EventTypeWarning, v1alpha1.ReasonTooManyGangs, "Create",
			"this %s has no Gang, and its ranks do not start: the namespace has %d Gangs, the limit is %d; delete jobs that are over",
			job.TypeMeta.Kind, len(gangs.Items), c.MaxGangs)
	}
	return errFull
}

// nodeCheck returns before which generations the pods of a job are tried.
func nodeCheck(job *jobs.Job) string {
	switch wanted := cmp.Or(job.Admitted.Settings.NodeCheck, v1alpha1.NodeCheckOff); {
	case settings.NodeCheckOff(job.Object()):
		return v1alpha1.NodeCheckOff
	case wanted != v1alpha1.NodeCheckAuto:
		return wanted
	case job.Devices && job.Admitted.Members > 1:
		return v1alpha1.NodeCheckAuto
	default:
		return v1alpha1.NodeCheckSuspects
	}
}

// gangSpec returns the spec of the Gang of an admitted job.
func gangSpec(job *jobs.Job) v1alpha1.GangSpec {
	s := job.Admitted.Settings
	spec := v1alpha1.GangSpec{
		JobRef:             job.Ref(),
		Members:            job.Admitted.Members,
		MinPods:            job.Admitted.Min,
		PodsUnit:           job.Admitted.Unit,
		ShrinkAfterSeconds: int32(s.ShrinkAfter / time.Second),
		Grow:               s.Grow,
		RetrySizes:         settings.RetrySizesOfJob(job.Object()),
		StateBytes:         s.StateBytes,
		Hang:               cmp.Or(s.Hang, v1alpha1.HangAct),
		HangTimeoutSeconds: int32(s.HangTimeout / time.Second),
		NodeCheck:          nodeCheck(job),
		SlowNodes:          s.SlowNodes,
	}
	wish := settings.CheckWishOfJob(job.Object())
	spec.CheckWish, spec.CheckNow = wish.Number, wish.Now
	if s.StorageClaim != "" {
		spec.Storage = &v1alpha1.GangStorage{
			Claim:            s.StorageClaim,
			IntervalSeconds:  int32(s.StorageInterval / time.Second),
			Keep:             s.Keep,
			KeepEverySeconds: int32(s.KeepEvery / time.Second),
			PinWish:          settings.PinWishOfJob(job.Object()),
		}
		for _, m := range settings.PinsOfJob(job.Object()) {
			spec.Storage.Pins = append(spec.Storage.Pins, v1alpha1.Checkpoint{Step: m.Step, Generation: m.Generation})
		}
	}
	return spec
}
