// Package jobs reads the jobs that were opted in, of every kind that Holdfast serves. Batch Jobs come from the
// manager's cache. For each other kind the Reader watches the metadata of objects while the cluster serves the kind,
// and reads each version of an object once from the API server.
//
//   - A kind that is not served, or cannot be read, does not delay the others.
//   - An object counts as gone only if the API server reports so, for the object or for the definition of its kind.
//   - The Reader stores at most a few KiB of an object.
package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

// maxMessage bounds the stored part of an object's message about its end.
const maxMessage = 1024

// Job is a job's object, of any kind, that was opted in when it was created.
type Job struct {
	// PartialObjectMetadata has type, name, UID, version, times, and those annotations and labels of the object itself that package settings
	// reads. It has no owners. Object returns it for events and owner references.
	metav1.PartialObjectMetadata
	Kind kinds.Kind
	// Admitted has the settings and the number of members, as admission stamped them on the templates.
	Admitted settings.Job
	State    kinds.State
	// Devices: pods of it request devices.
	Devices bool
	// Scheduler is the scheduler in the first role's template, or the one that the kind's controller writes; "": neither. It is always ""
	// for batch Jobs.
	Scheduler string
}

// Object returns the job for events and owner references.
func (j *Job) Object() client.Object { return &j.PartialObjectMetadata }

// Key returns the name of the job and of its gang.
func (j *Job) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: j.Namespace, Name: j.Name}
}

// Ref returns the reference to the job in its Gang.
func (j *Job) Ref() v1alpha1.JobReference {
	gvk := j.Kind.GroupVersionKind()
	return v1alpha1.JobReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: j.Name, UID: string(j.UID)}
}

// String returns the job as text for errors and logs.
func (j *Job) String() string { return Text(j.Kind, j.Key()) }

// Text returns an object of a kind as text.
func Text(kind kinds.Kind, name types.NamespacedName) string {
	if _, batch := kind.(kinds.BatchJob); batch {
		return "Job " + name.String()
	}
	return resource(kind) + " " + name.String()
}

// resource returns the name of a kind as kubectl spells it.
func resource(kind kinds.Kind) string { return kind.Resource() + "." + kind.GroupVersionKind().Group }

// IsBatch reports whether the object is Kubernetes' own Job.
func (j *Job) IsBatch() bool {
	_, is := j.Kind.(kinds.BatchJob)
	return is
}

// Options of New; all must be set.
type Options struct {
	// Client reads batch Jobs and Gangs, from the manager's cache.
	Client client.Reader
	// Live reads objects of all kinds from the API server itself.
	Live client.Reader
	// Metadata watches objects of other kinds and reads their definitions. Discovery returns which of these kinds are served.
	Metadata  metadata.Interface
	Discovery Discovery
	// Kinds are the kinds that Holdfast supports.
	Kinds []kinds.Kind
	Clock clock.WithTicker
	Log   logr.Logger
}

// Discovery returns what the API server serves.
type Discovery interface {
	ServerResourcesForGroupVersionWithContext(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)
}

// Reader reads jobs. It is safe for concurrent use. Named and Source return objects of kinds other than batch Job only while Start runs.
type Reader struct {
	o Options
	// ready is closed once discovery was queried and the objects of the served kinds were read, or the first read of a kind took too long.
	ready chan struct{}

	mu sync.Mutex
	// watches are the watched kinds; queues receive changes. Both are guarded by mu.
	watches map[schema.GroupKind]*watched
	queues  map[queue]bool
}

// New returns a Reader, which watches nothing before Start.
func New(o Options) *Reader {
	return &Reader{
		o:       o,
		ready:   make(chan struct{}),
		watches: map[schema.GroupKind]*watched{},
		queues:  map[queue]bool{},
	}
}

// Named returns the opted-in jobs of a name, of all kinds: the oldest first, and of jobs of the same second the one with the lower UID.
// There are several only if objects of different kinds have that name. The caller may store and change the result. It includes objects that
// are being deleted, but no object of a kind that is not read at present (see Unread).
//
// For each version of an object that is no batch Job, the first call reads the object from the API server. If that fails, Named fails.
func (r *Reader) Named(ctx context.Context, name types.NamespacedName) ([]*Job, error) {
	var all []*Job
	batch, err := r.batchJob(ctx, name)
	if err != nil {
		return nil, err
	}
	if batch != nil {
		all = append(all, batch)
	}
	for _, w := range r.served() {
		j, err := r.read(ctx, w, name)
		if err != nil {
			return nil, err
		}
		if j != nil {
			all = append(all, j)
		}
	}
	slices.SortFunc(all, func(a, b *Job) int {
		return cmp.Or(a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return all, nil
}

// Live reads the object with this UID, and its kind, from the API server itself; all nil: the object is gone. If the kind is known from a
// watch or from the Gang, one request is made; otherwise the object may be of any kind. If the cluster has stopped serving a kind, its
// objects are gone only if the kind's definition is gone; otherwise Live returns an error.
func (r *Reader) Live(ctx context.Context, name types.NamespacedName, uid types.UID) (kinds.Kind, *unstructured.Unstructured, error) {
	known, err := r.kindOf(ctx, name, uid)
	if err != nil {
		return nil, nil, err
	}
	may := r.o.Kinds
	if known != nil {
		may = []kinds.Kind{known}
	}
	var failed error
	for _, kind := range may {
		switch obj, err := r.live(ctx, kind, name, uid); {
		case obj != nil:
			return kind, obj, nil
		case err != nil:
			failed = err
		}
	}
	return nil, nil, failed
}

// Unread returns why objects of the kind in a Gang's reference are not read at present, so that an object that Named does not return may
// exist. nil: they are read, or the kind's definition is gone, so the object is gone. Objects of a kind that Holdfast does not support do
// not exist for it.
func (r *Reader) Unread(ctx context.Context, ref v1alpha1.JobReference) error {
	kind := r.kindOfRef(ref)
	if _, batch := kind.(kinds.BatchJob); batch || kind == nil {
		return nil
	}
	switch w := r.watch(kind); {
	case w == nil:
		gone, err := r.undefined(ctx, kind)
		if err != nil || gone {
			return err
		}
		return fmt.Errorf("the cluster does not serve %s", resource(kind))
	case !w.informer.HasSynced():
		return fmt.Errorf("%s have not been read yet", resource(kind))
	}
	return nil
}

// Undefined reports whether the kind in a Gang's reference is not served and its definition is gone. Kubernetes' garbage collector deletes
// no object whose owner is of such a kind.
func (r *Reader) Undefined(ctx context.Context, ref v1alpha1.JobReference) (bool, error) {
	kind := r.kindOfRef(ref)
	if _, batch := kind.(kinds.BatchJob); batch || kind == nil || r.watch(kind) != nil {
		return false, nil
	}
	return r.undefined(ctx, kind)
}

// definitions are the CustomResourceDefinitions.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// undefined reports whether the definition of a kind is gone. The API server removes a definition only after all its objects.
func (r *Reader) undefined(ctx context.Context, kind kinds.Kind) (bool, error) {
	_, err := r.o.Metadata.Resource(definitions).Get(ctx, resource(kind), metav1.GetOptions{})
	switch {
	case err == nil:
		return false, nil
	case apierrors.IsNotFound(err) && !isUnserved(err):
		return true, nil
	}
	return false, fmt.Errorf("reading the definition of %s: %w", resource(kind), err)
}

// batchJob returns the admitted batch Job of a name, from the cache.
func (r *Reader) batchJob(ctx context.Context, name types.NamespacedName) (*Job, error) {
	job := &batchv1.Job{}
	if err := r.o.Client.Get(ctx, name, job); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Job %s: %w", name, err)
	}
	admitted, ok := settings.AdmittedJob(job)
	if !ok {
		return nil, nil
	}
	return &Job{
		PartialObjectMetadata: partial(kinds.BatchJob{}, &job.ObjectMeta),
		Kind:                  kinds.BatchJob{},
		Admitted:              admitted,
		State:                 kinds.JobState(job),
		Devices:               settings.RequestsDevices(&job.Spec.Template.Spec),
	}, nil
}

func partial(kind kinds.Kind, m *metav1.ObjectMeta) metav1.PartialObjectMetadata {
	version, name := kind.GroupVersionKind().ToAPIVersionAndKind()
	return metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: name}, ObjectMeta: *m}
}

// kindOf returns the kind of an object, if a watch or the Gang shows it; nil: unknown.
func (r *Reader) kindOf(ctx context.Context, name types.NamespacedName, uid types.UID) (kinds.Kind, error) {
	for _, w := range r.served() {
		if m := w.get(name); m != nil && m.UID == uid {
			return w.kind, nil
		}
	}
	for _, o := range []client.Object{&batchv1.Job{}, &v1alpha1.Gang{}} {
		if err := r.o.Client.Get(ctx, name, o); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading %T %s: %w", o, name, err)
		}
		switch o := o.(type) {
		case *batchv1.Job:
			if o.UID == uid {
				return kinds.BatchJob{}, nil
			}
		case *v1alpha1.Gang:
			if o.Spec.JobRef.UID == string(uid) {
				return r.kindOfRef(o.Spec.JobRef), nil
			}
		}
	}
	return nil, nil
}

// kindOfRef returns the kind in a reference; nil: Holdfast does not support it.
func (r *Reader) kindOfRef(ref v1alpha1.JobReference) kinds.Kind {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil
	}
	for _, kind := range r.o.Kinds {
		if kind.GroupVersionKind().GroupKind() == gv.WithKind(ref.Kind).GroupKind() {
			return kind
		}
	}
	return nil
}

// live reads an object; nil: no object has this UID, or the definition of its kind is gone.
func (r *Reader) live(ctx context.Context, kind kinds.Kind, name types.NamespacedName, uid types.UID) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(kind.GroupVersionKind())
	err := r.o.Live.Get(ctx, name, obj)
	switch {
	case err == nil && obj.GetUID() == uid:
		return obj, nil
	case err == nil, apierrors.IsNotFound(err) && !isUnserved(err):
		return nil, nil
	}
	if _, batch := kind.(kinds.BatchJob); isUnserved(err) && !batch {
		if gone, unknown := r.undefined(ctx, kind); gone || unknown != nil {
			return nil, unknown
		}
	}
	return nil, fmt.Errorf("reading %s: %w", Text(kind, name), err)
}

// isUnserved reports whether an error of the API server means that it does not serve the kind. That answer, too, is "not found", and does
// not say of what. So it does not mean that an object is gone.
func isUnserved(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// digest is what is stored of an object that was read.
type digest struct {
	uid types.UID

	// mu is held while the object is read, so that each version is read once. It guards the fields below.
	mu sync.Mutex
	// seen is the version in the watched metadata; read is the version that the API server returned, which may be newer.
	seen, read string
	// admitted: the object was opted in when it was created.
	admitted  bool
	job       settings.Job
	state     kinds.State
	devices   bool
	scheduler string
}

// read returns the admitted job of a watched kind that has this name.
func (r *Reader) read(ctx context.Context, w *watched, name types.NamespacedName) (*Job, error) {
	m := w.get(name)
	if m == nil {
		return nil, nil
	}
	if ours, err := r.isOurs(ctx, w, m); err != nil || !ours {
		return nil, err
	}
	d := w.digest(name, m.UID)
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.ResourceVersion != d.seen && m.ResourceVersion != d.read {
		obj, err := r.live(ctx, w.kind, name, m.UID)
		if obj == nil { // gone: the watch will report it, too
			return nil, err
		}
		d.take(w.kind, obj)
		d.seen = m.ResourceVersion
	}
	if !d.admitted {
		return nil, nil
	}
	return &Job{
		PartialObjectMetadata: partial(w.kind, m.ObjectMeta.DeepCopy()),
		Kind:                  w.kind,
		Admitted:              d.job,
		State:                 d.state,
		Devices:               d.devices,
		Scheduler:             d.scheduler,
	}, nil
}

// isOurs reports whether an object may have been opted in: by its annotation or, if that was removed since, by an earlier read or by its
// Gang.
func (r *Reader) isOurs(ctx context.Context, w *watched, m *metav1.PartialObjectMetadata) (bool, error) {
	name := client.ObjectKeyFromObject(m)
	if settings.OptedIn(m) || w.knows(name) {
		return true, nil
	}
	g := &v1alpha1.Gang{}
	if err := r.o.Client.Get(ctx, name, g); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return g.Spec.JobRef.UID == string(m.UID), nil
}

// take stores what is needed of an object. An object that was admitted stays admitted, whatever is changed in it.
func (d *digest) take(kind kinds.Kind, obj *unstructured.Unstructured) {
	d.read = obj.GetResourceVersion()
	d.state = kind.State(obj)
	d.state.Message = cause.Tail(cause.Printable(d.state.Message), maxMessage)
	job, _ := kind.Read(obj) // an object that would be refused now was admitted
	for _, role := range job.Roles {
		if role.Before {
			continue
		}
		// Admission refuses settings that Holdfast supports only for batch Jobs. An object that has them all the same does not count as
		// admitted.
		if s, ok := settings.AdmittedTemplate(role.Pod.Annotations); ok && !s.Settings.Observe && s.Settings.ProvisioningClass == "" {
			d.admitted, d.job, d.scheduler, d.devices = true, s, role.Scheduler, settings.RequestsDevices(&role.Pod.Spec)
		}
		return
	}
}
