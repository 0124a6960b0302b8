// Package jobstest gives tests a reader of jobs, over an API server on which the test decides which kinds of job are
// served. As in the real program, batch Jobs come from a cache. For other kinds the metadata is watched, and each
// version of an object is read once.
package jobstest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
)

// Server is an API server over a fake client. It serves all kinds of job, except those for which Serve or Undefine was called.
type Server struct {
	t testing.TB
	// Live is a client of the server. Reads of an object of a kind that is not served fail as at a real server.
	Live client.WithWatch
	// Clock is the time of readers.
	Clock *clocktesting.FakeClock

	api client.WithWatch

	mu sync.Mutex
	// down is why the metadata of a kind cannot be read. away are the kinds that are not served; gone are those of them without a
	// definition. Guarded by mu, with all fields below.
	down  map[schema.GroupKind]error
	away  map[schema.GroupKind]bool
	gone  map[schema.GroupKind]bool
	open  map[schema.GroupKind][]watch.Interface
	reads map[schema.GroupKind]int
	// failing is why discovery fails.
	failing error
}

// New returns a server over a fake client. It serves all kinds.
func New(t testing.TB, api client.WithWatch) *Server {
	s := &Server{
		t:     t,
		Clock: clocktesting.NewFakeClock(time.Unix(1_000_000, 0)),
		api:   api,
		down:  map[schema.GroupKind]error{},
		away:  map[schema.GroupKind]bool{},
		gone:  map[schema.GroupKind]bool{},
		open:  map[schema.GroupKind][]watch.Interface{},
		reads: map[schema.GroupKind]int{},
	}
	s.Live = interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if u, is := o.(*unstructured.Unstructured); is {
				if err := s.reading(u.GroupVersionKind().GroupKind()); err != nil {
					return err
				}
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	return s
}

func (s *Server) reading(kind schema.GroupKind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[kind]++
	if s.away[kind] {
		return &meta.NoKindMatchError{GroupKind: kind}
	}
	return nil
}

// Reads returns how many objects of a kind were read so far, each with one request.
func (s *Server) Reads(kind kinds.Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads[kind.GroupVersionKind().GroupKind()]
}

// Serve makes the server serve a kind, or stop serving it. Then the watches of the kind end, and its definition stays.
func (s *Server) Serve(kind kinds.Kind, served bool) { s.define(kind, !served, false) }

// Undefine makes the server stop serving a kind, and deletes its definition.
func (s *Server) Undefine(kind kinds.Kind) { s.define(kind, true, true) }

func (s *Server) define(kind kinds.Kind, away, gone bool) {
	gk := kind.GroupVersionKind().GroupKind()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away[gk], s.gone[gk] = away, gone
	s.end(gk)
}

// Break makes reads of a kind's metadata fail with an error; nil: they succeed again.
func (s *Server) Break(kind kinds.Kind, with error) {
	gk := kind.GroupVersionKind().GroupKind()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[gk] = with
	s.end(gk)
}

// BreakDiscovery makes discovery and reads of definitions fail with an error; nil: they succeed again.
func (s *Server) BreakDiscovery(with error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = with
}

// end closes the watches of a kind. mu is held.
func (s *Server) end(kind schema.GroupKind) {
	for _, w := range s.open[kind] {
		w.Stop()
	}
	delete(s.open, kind)
}

// Reader returns a reader that runs until the test ends, and that has read all existing objects. cached reads batch Jobs and Gangs.
func (s *Server) Reader(cached client.Reader) *jobs.Reader {
	s.t.Helper()
	r := jobs.New(jobs.Options{
		Client:    cached,
		Live:      s.Live,
		Metadata:  s,
		Discovery: s,
		Kinds:     kinds.Served(),
		Clock:     s.Clock,
		Log:       logr.Discard(),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	soon, cancel := context.WithTimeout(ctx, eventually.Timeout)
	defer cancel()
	if err := r.Source().WaitForSync(soon); err != nil {
		s.t.Fatalf("jobs have not been read: %v", err)
	}
	return r
}

// Look makes readers query discovery again.
func (s *Server) Look() { s.Clock.Step(jobs.Every) }

// Knows waits until a reader has seen the newest version of an object, or that the object is gone.
func (s *Server) Knows(r *jobs.Reader, kind kinds.Kind, key client.ObjectKey) {
	s.t.Helper()
	eventually.Holds(s.t, "the reader has seen the newest version of "+jobs.Text(kind, key), func() (bool, any) {
		want := ""
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind.GroupVersionKind())
		switch err := s.api.Get(context.Background(), key, u); {
		case err == nil:
			want = u.GetResourceVersion()
		case !apierrors.IsNotFound(err):
			return false, err
		}
		all, err := r.Named(context.Background(), key)
		have := ""
		for _, j := range all {
			if j.Kind == kind {
				have = j.ResourceVersion
			}
		}
		return err == nil && have == want, []any{have, want, err}
	})
}

// ServerResourcesForGroupVersionWithContext implements jobs.Discovery.
func (s *Server) ServerResourcesForGroupVersionWithContext(_ context.Context, version string) (*metav1.APIResourceList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return nil, s.failing
	}
	list := &metav1.APIResourceList{}
	for _, kind := range kinds.Served() {
		if gvk := kind.GroupVersionKind(); gvk.GroupVersion().String() == version && !s.away[gvk.GroupKind()] {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: kind.Resource(), Kind: gvk.Kind})
		}
	}
	if len(list.APIResources) == 0 {
		return nil, unserved("")
	}
	return list, nil
}

// unserved returns the API server's error for a resource that it does not serve.
func unserved(resource string) error {
	return apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: resource}, "", "404 page not found", 0, true)
}

// Resource implements metadata.Interface.
func (s *Server) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	if gvr.Resource == "customresourcedefinitions" {
		return definitions{server: s}
	}
	for _, kind := range kinds.Served() {
		if gvk := kind.GroupVersionKind(); gvk.GroupVersion().WithResource(kind.Resource()) == gvr {
			return resource{server: s, gvk: gvk}
		}
	}
	s.t.Fatalf("metadata of %s are read", gvr)
	return nil
}

// definitions reads the definitions of kinds. No method except Get may be called.
type definitions struct {
	metadata.Getter

	server *Server
}

// Get implements metadata.ResourceInterface.
func (d definitions) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	if d.server.failing != nil {
		return nil, d.server.failing
	}
	for _, kind := range kinds.Served() {
		if gk := kind.GroupVersionKind().GroupKind(); kind.Resource()+"."+gk.Group == name && !d.server.gone[gk] {
			return &metav1.PartialObjectMetadata{}, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, name)
}

// resource reads the metadata of a kind's objects. No method except List and Watch may be called.
type resource struct {
	metadata.ResourceInterface

	server *Server
	gvk    schema.GroupVersionKind
}

// Namespace implements metadata.Getter.
func (r resource) Namespace(string) metadata.ResourceInterface { return r }

// List implements metadata.ResourceInterface.
func (r resource) List(ctx context.Context, _ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if err := r.refused(); err != nil {
		return nil, err
	}
	return r.all(ctx)
}

// all returns the existing objects.
func (r resource) all(ctx context.Context) (*metav1.PartialObjectMetadataList, error) {
	list := r.list()
	if err := r.server.api.List(ctx, list); err != nil {
		return nil, err
	}
	out := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}}
	for i := range list.Items {
		out.Items = append(out.Items, *r.partial(&list.Items[i]))
	}
	return out, nil
}

func (r resource) list() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(r.gvk.GroupVersion().WithKind(r.gvk.Kind + "List"))
	return list
}

func (r resource) refused() error {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	switch kind := r.gvk.GroupKind(); {
	case r.server.away[kind]:
		return unserved(r.gvk.Kind)
	default:
		return r.server.down[kind]
	}
}

// Watch implements metadata.ResourceInterface: it sends the existing objects first, if the options request that.
func (r resource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := r.refused(); err != nil {
		return nil, err
	}
	if o.SendInitialEvents == nil || !*o.SendInitialEvents {
		return nil, errors.New("a watch that begins in the middle is not to be had here")
	}
	changes, err := r.server.api.Watch(ctx, r.list())
	if err != nil {
		return nil, err
	}
	list, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go func() {
		defer changes.Stop()
		defer close(events)
		send := func(kind watch.EventType, o *metav1.PartialObjectMetadata) bool {
			select {
			case events <- watch.Event{Type: kind, Object: o}:
				return true
			case <-w.StopChan():
				return false
			}
		}
		for i := range list.Items {
			if !send(watch.Added, &list.Items[i]) {
				return
			}
		}
		end := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: list.ResourceVersion,
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		if !send(watch.Bookmark, end) {
			return
		}
		for {
			select {
			case e, ok := <-changes.ResultChan():
				o, is := e.Object.(client.Object)
				if !ok || is && !send(e.Type, r.partial(o)) {
					return
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.server.open[r.gvk.GroupKind()] = append(r.server.open[r.gvk.GroupKind()], w)
	return w, nil
}

func (r resource) partial(o client.Object) *metav1.PartialObjectMetadata {
	m := meta.AsPartialObjectMetadata(o)
	m.SetGroupVersionKind(r.gvk)
	return m
}
