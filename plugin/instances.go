package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/serve"
)

// Instances holds the plugin's instances of one process, one per profile, and starts them. kube-scheduler starts plugins and informers in
// every replica, but takes the first pod from its queue only once it leads, and ends when it loses the lead. So a replica acts from its
// first pod until it ends.
type Instances struct {
	// clients returns the clients of an instance.
	clients func(fwk.Handle) (clients, error)
	// Server answers queries in the scheduling goroutine, between two cycles.
	*serve.Server
	measures *measures
	// book holds the groups of other APIs; it is created with the first instance.
	book *external.Book
	// terms, if a test sets it, replaces book.Terms.
	terms func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error)
	// leading is closed when this replica starts to act.
	leading chan struct{}

	mu sync.Mutex
	// plugins by scheduler name. Guarded by mu.
	plugins map[string]*Plugin
}

// clients are clients beside that of kube-scheduler. Each has a rate limit of its own, so that events do not delay bindings.
type clients struct {
	gangs  dynamic.Interface
	events eventsclient.EventsV1Interface
}

// NewInstances returns the Instances of one process.
func NewInstances() *Instances {
	return newInstances(func(h fwk.Handle) (clients, error) {
		if h.KubeConfig() == nil {
			return clients{}, errors.New("the scheduler gives no client configuration")
		}
		gangs, err := dynamic.NewForConfig(h.KubeConfig())
		if err != nil {
			return clients{}, err
		}
		events, err := eventsclient.NewForConfig(h.KubeConfig())
		return clients{gangs, events}, err
	})
}

func newInstances(clients func(fwk.Handle) (clients, error)) *Instances {
	leading := make(chan struct{})
	return &Instances{
		Server:   serve.NewServer(leading),
		clients:  clients,
		measures: newMeasures(),
		leading:  leading,
		plugins:  map[string]*Plugin{},
	}
}

// Metrics returns the metrics of all instances, to be registered once.
func (s *Instances) Metrics() []prometheus.Collector { return s.measures.all() }

// New is the plugin's factory.
func (s *Instances) New(ctx context.Context, obj runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := readArgs(obj)
	if err != nil {
		return nil, err
	}
	c, err := s.clients(h)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: creating clients: %w", Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.book == nil {
		s.book = external.NewBook(c.gangs, h.ClientSet().Discovery())
	}
	terms := s.terms
	if terms == nil {
		terms = s.book.Terms
	}
	p, err := newPlugin(ctx, args, h, c, s.book, terms, s.measures)
	if err != nil {
		return nil, err
	}
	s.plugins[h.ProfileName()] = p
	s.Add(p.answers)
	return p, nil
}

// Start has the scheduler start the instances' writes when it takes its first pod, and answer queries between two cycles.
// Call it before the scheduler runs.
func (s *Instances) Start(ctx context.Context, sched *scheduler.Scheduler) {
	type popped struct {
		entity framework.QueuedEntityInfo
		err    error
	}
	s.deferEvents(sched)
	failed := sched.FailureHandler
	sched.FailureHandler = func(
		ctx context.Context, f framework.Framework, pod *framework.QueuedPodInfo, status *fwk.Status,
		nominating *fwk.NominatingInfo, start time.Time,
	) {
		if p := s.of(f.ProfileName()); p != nil && errors.Is(status.AsError(), scheduler.ErrNoNodesAvailable) {
			p.noNodes(ctx, pod.Pod)
		}
		failed(ctx, f, pod, status, nominating, start)
	}
	if s.book != nil {
		go s.book.Run(ctx)
	}
	pop := sched.NextEntity
	next := make(chan popped, 1)
	asked := false // belongs to the scheduling goroutine
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		s.lead(ctx)
		if !asked {
			asked = true
			go func() {
				entity, err := pop(logger)
				next <- popped{entity, err}
			}()
		}
		for {
			select {
			case got := <-next:
				asked = false
				return got.entity, got.err
			case q := <-s.Questions():
				q.Answer(sched.Cache)
			}
		}
	}
}

// of returns the instance for a scheduler's name.
func (s *Instances) of(name string) *Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugins[name]
}

// lead starts all instances. It runs in the scheduling goroutine.
func (s *Instances) lead(ctx context.Context) {
	select {
	case <-s.leading:
		return
	default:
	}
	close(s.leading)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plugins {
		p.act(ctx)
	}
}

// Flush writes deferred events until the context ends. The scheduler must run meanwhile.
func (s *Instances) Flush(ctx context.Context) {
	s.mu.Lock()
	plugins := slices.Collect(maps.Values(s.plugins))
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range plugins {
		all.Go(func() { p.deferredEvents.flush(ctx) })
	}
	all.Wait()
}
