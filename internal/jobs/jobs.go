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

// maxMessage bounds what is kept of what an object says of its end.
const maxMessage = 1024

// Job is a job's object, of any kind, that was opted in when it was created.
type Job struct {
	// PartialObjectMetadata has type, name, UID, version, times, and the annotations that settings reads of a job's own metadata: pins.
	// It has no labels and no owners. Object returns it for events and owner references.
	metav1.PartialObjectMetadata
	Kind kinds.Kind
	// Admitted are the settings and the number of members, as stamped on the templates at admission.
	Admitted settings.Job
	State    kinds.State
	// Scheduler places the pods: it is named in the first role's template, or written by the kind's controller; "": neither. It is not
	// known of batch Jobs.
	Scheduler string
}

// Object is the job for events and owner references.
func (j *Job) Object() client.Object { return &j.PartialObjectMetadata }

// Key names the job, and its gang.
func (j *Job) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: j.Namespace, Name: j.Name}
}

// Ref is what its Gang says of it.
func (j *Job) Ref() v1alpha1.JobReference {
	gvk := j.Kind.GroupVersionKind()
	return v1alpha1.JobReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: j.Name, UID: string(j.UID)}
}

// String is the job for errors and logs.
func (j *Job) String() string { return Text(j.Kind, j.Key()) }

// Text names an object of a kind.
func Text(kind kinds.Kind, name types.NamespacedName) string {
	if _, batch := kind.(kinds.BatchJob); batch {
		return "Job " + name.String()
	}
	return resource(kind) + " " + name.String()
}

// resource names a kind as kubectl does.
func resource(kind kinds.Kind) string { return kind.Resource() + "." + kind.GroupVersionKind().Group }

// IsBatch says whether it is Kubernetes' own Job.
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
	// Metadata watches other kinds, and reads their definitions; Discovery says which of them are served.
	Metadata  metadata.Interface
	Discovery Discovery
	// Kinds are the kinds that Holdfast serves.
	Kinds []kinds.Kind
	Clock clock.WithTicker
	Log   logr.Logger
}

// Discovery says what the API server serves.
type Discovery interface {
	ServerResourcesForGroupVersionWithContext(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)
}

// Reader reads jobs. It is safe for concurrent use. Named and Source know objects of other kinds than batch Jobs once Start runs.
type Reader struct {
	o Options
	// ready is closed once kinds have been looked for, and those that are served have been read or given up for now.
	ready chan struct{}

	mu sync.Mutex
	// watches are the kinds that are served, and queues where changes are sent to. Both are guarded by mu.
	watches map[schema.GroupKind]*watched
	queues  map[queue]bool
}

// New returns a Reader, which Start has watch.
func New(o Options) *Reader {
	return &Reader{
		o:       o,
		ready:   make(chan struct{}),
		watches: map[schema.GroupKind]*watched{},
		queues:  map[queue]bool{},
	}
}

// Named returns the opted-in jobs of a name, of all kinds: the oldest first, of those of one second the one with the lower UID. There is
// more than one only where objects of several kinds have one name. The caller may keep and change them. An object
// that is being deleted is among them. One of a kind that is not read now (see Unread) is not.
//
// The first call for a version of an object that is no batch Job reads it from the API server; where that fails, Named does.
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

// Live reads the object that has this UID from the API server itself, with its kind; all nil: it is gone. Where its kind is known, from
// what is watched or from its Gang, one request is made; else the object may be of each kind. An object of a kind that the cluster has
// stopped serving is gone only if the kind's definition is: else that is an error.
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

// Unread is why objects of the kind that a Gang's reference names are not read now, so that one that Named lacks may still exist; nil:
// they are read, or their kind's definition is gone, and it is gone. Of a kind that Holdfast does not serve there is none.
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

// Undefined says whether the kind that a Gang's reference names is not served and its definition gone. Kubernetes' garbage collector
// deletes nothing whose owner is of such a kind.
func (r *Reader) Undefined(ctx context.Context, ref v1alpha1.JobReference) (bool, error) {
	kind := r.kindOfRef(ref)
	if _, batch := kind.(kinds.BatchJob); batch || kind == nil || r.watch(kind) != nil {
		return false, nil
	}
	return r.undefined(ctx, kind)
}

// definitions are the CustomResourceDefinitions.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// undefined says whether a kind's definition is gone. The API server removes one only after all its objects.
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
	}, nil
}

func partial(kind kinds.Kind, m *metav1.ObjectMeta) metav1.PartialObjectMetadata {
	version, name := kind.GroupVersionKind().ToAPIVersionAndKind()
	return metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: name}, ObjectMeta: *m}
}

// kindOf is the kind of an object, by what is known without a request; nil: nothing is.
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

// kindOfRef is the kind that a reference names; nil: none that is served.
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

// live reads an object; nil: there is none that has this UID, or its kind's definition is gone.
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

// isUnserved says whether an API server that answers so serves no such kind. It answers "not found" then as well, and does not say of
// what: this is not the end of an object.
func isUnserved(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// digest is what is kept of an object that was read.
type digest struct {
	uid types.UID

	// mu is held while the object is read, so that it is read once for each version. It guards all below.
	mu sync.Mutex
	// seen is the version that the metadata had then, and read the one that the API server returned, which may be a newer one.
	seen, read string
	// admitted: it was opted in when it was created.
	admitted  bool
	job       settings.Job
	state     kinds.State
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
		if obj == nil { // gone: the watch says so, too
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
		Scheduler:             d.scheduler,
	}, nil
}

// isOurs says whether an object may be one that was opted in: by its annotation, or, where that was removed since, by what was read
// before or by its Gang.
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

// take keeps what an object says. An object that was admitted stays so, whatever became of it since.
func (d *digest) take(kind kinds.Kind, obj *unstructured.Unstructured) {
	d.read = obj.GetResourceVersion()
	d.state = kind.State(obj)
	d.state.Message = cause.Tail(cause.Printable(d.state.Message), maxMessage)
	job, _ := kind.Read(obj) // what would be refused now was admitted
	for _, role := range job.Roles {
		if role.Before {
			continue
		}
		// What Holdfast serves of batch Jobs alone is refused at admission; nothing is done for an object that has it all the same.
		if s, ok := settings.AdmittedTemplate(role.Pod.Annotations); ok && !s.Settings.Observe && s.Settings.ProvisioningClass == "" {
			d.admitted, d.job, d.scheduler = true, s, role.Scheduler
		}
		return
	}
}
