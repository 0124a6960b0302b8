// Package serve answers queries to the scheduler's plugin: where a gang would be placed, and how fragmented the fabric
// is. Each query is answered between two scheduling cycles, with the result that planning would have at that moment. A
// query changes nothing. A replica that does not schedule returns ErrNotLeading.
package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/preemption"
)

// InvalidError is an error in a query, for the caller.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &InvalidError{text: fmt.Sprintf(format, args...)}
}

// ErrNotLeading is returned by a replica that does not schedule.
var ErrNotLeading = errors.New("this replica of the scheduler is not the leader: try again, another one is")

// Framework is the part of the scheduling framework that queries use.
type Framework interface {
	ProfileName() string
	SharedDRAManager() fwk.SharedDRAManager
	SnapshotSharedLister() fwk.SharedLister
}

// Instance is one profile that answers queries. Its methods belong to the scheduling goroutine.
type Instance struct {
	Framework  Framework
	Gangs      *gangcache.Cache
	Planner    *planner.Planner
	Preemption *preemption.Preemptor
	// Terms returns the terms of a gang, of which one pod is given.
	Terms func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error)
}

// gangOf returns the gang of a pod in this profile.
func (i *Instance) gangOf(pod *v1.Pod) (types.NamespacedName, bool) {
	return gangcache.GangOf(pod, i.Framework.ProfileName())
}

// Server passes queries to instances.
type Server struct {
	// leading is closed when this replica starts to act.
	leading   <-chan struct{}
	questions chan Question

	mu sync.Mutex
	// instances by scheduler name. Guarded by mu.
	instances map[string]*Instance
}

// NewServer returns a Server that answers once leading is closed.
func NewServer(leading <-chan struct{}) *Server {
	return &Server{leading: leading, questions: make(chan Question), instances: map[string]*Instance{}}
}

// Add adds an instance.
func (s *Server) Add(i *Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[i.Framework.ProfileName()] = i
}

// Questions returns the channel of queries to be answered in the scheduling goroutine, between two cycles.
func (s *Server) Questions() <-chan Question { return s.questions }

// Leads reports whether this replica schedules.
func (s *Server) Leads() bool {
	select {
	case <-s.leading:
		return true
	default:
		return false
	}
}

// Question is a query to one of the instances.
type Question struct {
	ctx      context.Context
	s        *Server
	instance func() (*Instance, error) // called with the server's mu held
	ask      func(context.Context, *Instance) error
	done     chan error
}

// Preview returns where the pods of one gang would be placed now.
func (s *Server) Preview(ctx context.Context, pods []*v1.Pod) (v1alpha1.PreviewResponse, error) {
	var response v1alpha1.PreviewResponse
	err := s.between(ctx, func() (*Instance, error) {
		if i := s.instances[pods[0].Spec.SchedulerName]; i != nil {
			return i, nil
		}
		return nil, invalid("pod %s names scheduler %q, which this one does not serve", pods[0].Name, pods[0].Spec.SchedulerName)
	}, func(ctx context.Context, i *Instance) (err error) {
		response, err = i.Preview(ctx, pods)
		return err
	})
	return response, err
}

// between queues a query and waits for its answer.
func (s *Server) between(ctx context.Context, instance func() (*Instance, error), ask func(context.Context, *Instance) error) error {
	if !s.Leads() {
		return ErrNotLeading
	}
	q := Question{ctx: ctx, s: s, instance: instance, ask: ask, done: make(chan error, 1)}
	select {
	case s.questions <- q:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of a scheduling cycle: %w", ctx.Err())
	}
	return <-q.done
}

// previewTime bounds how long pods wait while a query is answered.
const previewTime = 2 * time.Second

// Answer answers the query. It runs in the scheduling goroutine, so that no cycle uses the framework's snapshot meanwhile.
func (q Question) Answer(c cache.Cache) { q.done <- q.answer(c) }

func (q Question) answer(c cache.Cache) error {
	q.s.mu.Lock()
	i, err := q.instance()
	q.s.mu.Unlock()
	if err != nil {
		return err
	}
	snapshot, ok := i.Framework.SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		return fmt.Errorf("the scheduler's snapshot is a %T: this is not the Kubernetes version that the plugin was built for", i.Framework.SnapshotSharedLister())
	}
	if err := c.UpdateSnapshot(klog.FromContext(q.ctx), snapshot); err != nil {
		return fmt.Errorf("updating the snapshot: %w", err)
	}
	ctx, cancel := context.WithTimeout(q.ctx, previewTime)
	defer cancel()
	return q.ask(ctx, i)
}
