package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/external"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// Station holds the plugin's instances of one process, one per profile, and says when they act. kube-scheduler
// starts plugins and informers in every replica and takes the first pod from its queue only once it leads; a
// replica that loses the lead ends. So the first time that a pod is asked for is when this replica begins to act,
// and it acts until it ends.
type Station struct {
	// clients makes a client for Gangs.
	clients func(fwk.Handle) (dynamic.Interface, error)
	// questions are asked in the scheduling goroutine, between two cycles.
	questions chan errand
	measures  *measures
	// book is what is known of groups of other APIs; it is made with the first instance.
	book *external.Book
	// terms, where a test sets it, takes the place of what the book says of gangs.
	terms func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error)
	// leading is closed when this replica begins to act.
	leading chan struct{}

	mu sync.Mutex
	// plugins by scheduler name. Guarded by mu.
	plugins map[string]*Plugin
}

// NewStation returns a Station for one process.
func NewStation() *Station {
	return newStation(func(h fwk.Handle) (dynamic.Interface, error) {
		if h.KubeConfig() == nil {
			return nil, errors.New("the scheduler gives no client configuration")
		}
		return dynamic.NewForConfig(h.KubeConfig())
	})
}

func newStation(clients func(fwk.Handle) (dynamic.Interface, error)) *Station {
	return &Station{clients: clients, questions: make(chan errand), measures: newMeasures(), leading: make(chan struct{}), plugins: map[string]*Plugin{}}
}

// Metrics are what the instances measure, to be registered once.
func (s *Station) Metrics() []prometheus.Collector { return s.measures.all() }

// New is the plugin's factory.
func (s *Station) New(ctx context.Context, obj runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := readArgs(obj)
	if err != nil {
		return nil, err
	}
	client, err := s.clients(h)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: making a client for Gangs: %w", Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.book == nil {
		s.book = external.NewBook(client, h.ClientSet().Discovery())
	}
	terms := s.terms
	if terms == nil {
		terms = s.book.Terms
	}
	p, err := newPlugin(ctx, args, h, client, s.book, terms, s.measures)
	if err != nil {
		return nil, err
	}
	s.plugins[h.ProfileName()] = p
	return p, nil
}

// Drive has the instances act once the scheduler takes its first pod, and has questions answered where nothing
// moves: in the scheduling goroutine, between two cycles. It must be called before the scheduler runs.
func (s *Station) Drive(ctx context.Context, sched *scheduler.Scheduler) {
	type popped struct {
		entity framework.QueuedEntityInfo
		err    error
	}
	s.holdNotices(sched)
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
			case q := <-s.questions:
				q.done <- s.answer(q, sched.Cache)
			}
		}
	}
}

// lead runs in the scheduling goroutine alone.
func (s *Station) lead(ctx context.Context) {
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

// Flush has events written that were held back, while the context lasts. The scheduler must run meanwhile.
func (s *Station) Flush(ctx context.Context) {
	s.mu.Lock()
	plugins := slices.Collect(maps.Values(s.plugins))
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range plugins {
		all.Go(func() { p.notices.flush(ctx) })
	}
	all.Wait()
}

// Leads says whether this replica schedules.
func (s *Station) Leads() bool {
	select {
	case <-s.leading:
		return true
	default:
		return false
	}
}

// ErrNotLeading is the answer of a replica that does not schedule.
var ErrNotLeading = errors.New("this replica of the scheduler does not lead: ask again, another one does")

// errand is a question that is put in the scheduling goroutine, to one of the plugins.
type errand struct {
	ctx  context.Context
	whom func() (*Plugin, error) // called with mu held
	ask  func(context.Context, *Plugin) error
	done chan error
}

// Preview says where the pods of one gang would land now, or why not. Nothing is reserved or written.
func (s *Station) Preview(ctx context.Context, pods []*v1.Pod) (v1alpha1.PreviewResponse, error) {
	var response v1alpha1.PreviewResponse
	err := s.between(ctx, func() (*Plugin, error) {
		if p := s.plugins[pods[0].Spec.SchedulerName]; p != nil {
			return p, nil
		}
		return nil, invalid("pod %s names scheduler %q, which is none of this one's", pods[0].Name, pods[0].Spec.SchedulerName)
	}, func(ctx context.Context, p *Plugin) (err error) {
		response, err = p.preview(ctx, pods)
		return err
	})
	return response, err
}

// between has a question answered between two scheduling cycles.
func (s *Station) between(ctx context.Context, whom func() (*Plugin, error), ask func(context.Context, *Plugin) error) error {
	if !s.Leads() {
		return ErrNotLeading
	}
	q := errand{ctx: ctx, whom: whom, ask: ask, done: make(chan error, 1)}
	select {
	case s.questions <- q:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the scheduler to have a moment: %w", ctx.Err())
	}
	return <-q.done
}

// previewTime bounds how long pods wait behind a question.
const previewTime = 2 * time.Second

// answer runs in the scheduling goroutine, so that the framework's snapshot is this question's alone.
func (s *Station) answer(q errand, c cache.Cache) error {
	s.mu.Lock()
	p, err := q.whom()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	snapshot, ok := p.handle.SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		return fmt.Errorf("the scheduler's snapshot is a %T: this is not the Kubernetes version that the plugin was built for", p.handle.SnapshotSharedLister())
	}
	if err := c.UpdateSnapshot(klog.FromContext(q.ctx), snapshot); err != nil {
		return fmt.Errorf("bringing the snapshot up to date: %w", err)
	}
	ctx, cancel := context.WithTimeout(q.ctx, previewTime)
	defer cancel()
	return q.ask(ctx, p)
}
