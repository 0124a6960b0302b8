package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/internal/slim"
)

const (
	// Every is the interval at which discovery is queried for the served kinds.
	Every = 10 * time.Second
	// lookTimeout bounds one such query.
	lookTimeout = 5 * time.Second
	// firstRead is how long controllers wait at their start for the objects of a kind that is served but cannot be read.
	firstRead = 10 * time.Second
)

// queue is the queue of a controller.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// ForManager returns a Reader of the kinds with the manager's clients. It runs on the leader.
func ForManager(mgr ctrl.Manager, served []kinds.Kind) (*Reader, error) {
	cfg := mgr.GetConfig()
	ofMetadata, err := metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making the client of metadata: %w", err)
	}
	discoverer, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making the client of discovery: %w", err)
	}
	r := New(Options{
		Client:    mgr.GetClient(),
		Live:      mgr.GetAPIReader(),
		Metadata:  ofMetadata,
		Discovery: discoverer,
		Kinds:     served,
		Clock:     clock.RealClock{},
		Log:       mgr.GetLogger().WithName("jobs"),
	})
	if err := mgr.Add(r); err != nil {
		return nil, fmt.Errorf("adding the reader of jobs: %w", err)
	}
	return r, nil
}

// watched is a kind that the cluster serves.
type watched struct {
	kind     kinds.Kind
	informer toolscache.SharedIndexInformer
	// stop ends the informer; ended is closed when it has ended.
	stop  context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	digests map[types.NamespacedName]*digest // guarded by mu
}

// get returns the metadata of an object, which must not be changed; nil: it does not exist.
func (w *watched) get(name types.NamespacedName) *metav1.PartialObjectMetadata {
	item, _, _ := w.informer.GetStore().GetByKey(name.String())
	m, _ := item.(*metav1.PartialObjectMetadata)
	return m
}

// digest returns the digest of an object; empty: the object was not read yet.
func (w *watched) digest(name types.NamespacedName, uid types.UID) *digest {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.digests[name]
	if d == nil || d.uid != uid {
		d = &digest{uid: uid}
		w.digests[name] = d
	}
	return d
}

// knows reports whether an object of this name was read before.
func (w *watched) knows(name types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.digests[name] != nil
}

// sweep drops the digests of objects that are gone: an object may be deleted while it is read.
func (w *watched) sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.digests, func(name types.NamespacedName, d *digest) bool {
		m := w.get(name)
		return m == nil || m.UID != d.uid
	})
}

// Start queries discovery, and watches the kinds that are served, until ctx ends.
func (r *Reader) Start(ctx context.Context) error {
	ticker := r.o.Clock.NewTicker(Every)
	defer ticker.Stop()
	r.look(ctx)
	r.await(ctx)
	close(r.ready)
	for {
		select {
		case <-ctx.Done():
			for _, w := range r.served() {
				<-w.ended
			}
			return nil
		case <-ticker.C():
			r.look(ctx)
		}
	}
}

// await returns once the objects of all served kinds have been read, or after firstRead.
func (r *Reader) await(ctx context.Context) {
	late := r.o.Clock.After(firstRead)
	for _, w := range r.served() {
		select {
		case <-w.informer.HasSyncedChecker().Done():
		case <-ctx.Done():
			return
		case <-late:
			r.o.Log.Info("objects cannot be read; other kinds do not wait for them", "kind", resource(w.kind))
			return
		}
	}
}

// look queries which kinds are served, starts to watch new ones, and stops watching those that are no longer served.
func (r *Reader) look(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for _, kind := range r.o.Kinds {
		if _, batch := kind.(kinds.BatchJob); batch {
			continue
		}
		w := r.watch(kind)
		if w != nil {
			w.sweep()
		}
		switch served, err := r.serves(asking, kind); {
		case err != nil: // nothing changes
			r.o.Log.Error(err, "asking whether a kind is served", "kind", resource(kind))
		case served && w == nil:
			r.begin(ctx, kind)
		case !served && w != nil:
			r.end(w)
		}
	}
}

// serves reports whether the API server serves a kind.
func (r *Reader) serves(ctx context.Context, kind kinds.Kind) (bool, error) {
	list, err := r.o.Discovery.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersionKind().GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == kind.Resource() }), nil
}

// begin watches a kind.
func (r *Reader) begin(ctx context.Context, kind kinds.Kind) {
	gvr := kind.GroupVersionKind().GroupVersion().WithResource(kind.Resource())
	w := &watched{
		kind:     kind,
		informer: metadatainformer.NewFilteredMetadataInformer(r.o.Metadata, gvr, metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer(),
		ended:    make(chan struct{}),
		digests:  map[types.NamespacedName]*digest{},
	}
	if err := w.informer.SetTransform(slim.Metadata); err != nil {
		panic(err) // it has not been started
	}
	if _, err := w.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.changed(w, obj) },
		UpdateFunc: func(old, obj any) { r.changed(w, old, obj) },
		DeleteFunc: func(obj any) { r.changed(w, obj) },
	}); err != nil {
		panic(err) // it has not been stopped
	}
	ctx, w.stop = context.WithCancel(ctx)
	go func() {
		defer close(w.ended)
		w.informer.RunWithContext(ctx)
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches[kind.GroupVersionKind().GroupKind()] = w
	r.o.Log.Info("a kind of job is served", "kind", resource(kind))
}

// end stops watching a kind that is no longer served, and sends its jobs to the controllers.
func (r *Reader) end(w *watched) {
	w.stop()
	r.mu.Lock()
	delete(r.watches, w.kind.GroupVersionKind().GroupKind())
	r.mu.Unlock()
	<-w.ended
	for _, item := range w.informer.GetStore().List() {
		r.changed(w, item)
	}
	r.o.Log.Info("a kind of job is not served any more", "kind", resource(w.kind))
}

// changed sends the name of a changed object to the controllers, if its former or its present state is opted in.
func (r *Reader) changed(w *watched, states ...any) {
	for _, state := range states {
		if gone, is := state.(toolscache.DeletedFinalStateUnknown); is {
			state = gone.Obj
		}
		m, is := state.(*metav1.PartialObjectMetadata)
		if !is {
			continue
		}
		if name := client.ObjectKeyFromObject(m); settings.OptedIn(m) || w.knows(name) {
			r.request(name)
			return
		}
	}
}

func (r *Reader) request(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.queues {
		q.Add(reconcile.Request{NamespacedName: name})
	}
}

// served returns the watched kinds, in the order of Kinds.
func (r *Reader) served() []*watched {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*watched
	for _, kind := range r.o.Kinds {
		if w := r.watches[kind.GroupVersionKind().GroupKind()]; w != nil {
			all = append(all, w)
		}
	}
	return all
}

func (r *Reader) watch(kind kinds.Kind) *watched {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watches[kind.GroupVersionKind().GroupKind()]
}

// Source returns a source for the method WatchesRawSource of a controller. Source sends a request (namespace and name) for each existing
// opted-in object of any kind but batch Job, and for each change of one. Controllers watch batch Jobs through the manager's cache. The
// controller starts once the served kinds have been read, or after firstRead.
func (r *Reader) Source() source.SyncingSource { return changes{r} }

type changes struct{ r *Reader }

// String implements fmt.Stringer.
func (changes) String() string { return "jobs" }

// Start implements source.Source.
func (c changes) Start(ctx context.Context, q queue) error {
	c.r.mu.Lock()
	c.r.queues[q] = true
	c.r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		delete(c.r.queues, q)
	})
	for _, w := range c.r.served() {
		for _, item := range w.informer.GetStore().List() {
			c.r.changed(w, item)
		}
	}
	return nil
}

// WaitForSync implements source.SyncingSource.
func (c changes) WaitForSync(ctx context.Context) error {
	select {
	case <-c.r.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
