// Package controller applies the cluster's outage budget. The controller gathers the verdicts, leases, agents and gangs
// of all nodes and calls budget.Decide. It writes each changed decision to the decision's Node, as an annotation and a
// taint in one patch. Taints of other writers are never changed. A new leader reads the earlier decisions from the
// Nodes. With Options.DryRun the controller reports the same decisions and writes no Node.
package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/nodehealth/budget"
)

// FieldManager owns the decisions on Nodes.
const FieldManager = "holdfast-nodes"

const (
	// every is the interval between checks for silent nodes; a changed verdict is decided on at once.
	every = time.Second
	// writers bounds concurrent writes, writeTimeout one of them; a failed write is repeated in the next round.
	writers      = 32
	writeTimeout = 10 * time.Second
)

// ContactSource returns when the agent in a pod last reported; false: never to this process.
type ContactSource interface {
	LastContact(podUID string) (time.Time, bool)
}

// Options of New; all but Contacts and Metrics must be set.
type Options struct {
	// Informers and Reader are one cache, such as mgr.GetCache(): of Nodes, of the Leases of
	// corev1.NamespaceNodeLease and of pods of gangs.
	Informers cache.Informers
	Reader    client.Reader
	// Writer writes Nodes, and reads a Node again after a conflict; it has its own rate limit.
	Writer client.Client
	// Recorder writes events, such as mgr.GetEventRecorder("holdfast-nodes").
	Recorder events.EventRecorder
	// Contacts may be nil: no agent reports.
	Contacts ContactSource
	Now      func() time.Time
	Log      logr.Logger
	Metrics  prometheus.Registerer

	Budget budget.Config
	// DomainLabels are labels with a node's failure domain; the first that a node has counts.
	DomainLabels []string
	// DryRun: decisions are reported, and Nodes are not written.
	DryRun bool
}

// Controller decides on the leader only.
type Controller struct {
	Options
	leases  *leases
	metrics *metrics
	// passing bounds concurrent writes of passes.
	passing chan struct{}
	// wake receives when a Node's verdict, request or outage changed.
	wake chan struct{}

	// The fields below belong to the goroutine of Start.

	led, partitionSuspected, broken time.Time
	was                             budget.Plan
	// written has the decisions that the cache may not show yet; in a dry run, those that would have been written.
	written map[string]written
	// notified are Nodes with an unreadable annotation, with the error that was logged.
	notified map[string]string
}

// New returns a Controller.
func New(o Options) (*Controller, error) {
	if err := o.Budget.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Controller{
		Options:  o,
		leases:   newLeases(o.Now),
		metrics:  m,
		passing:  make(chan struct{}, passWriters),
		wake:     make(chan struct{}, 1),
		written:  map[string]written{},
		notified: map[string]string{},
	}, nil
}

// SetupWithManager adds the controller to the manager, which starts it on the leader.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error { return mgr.Add(c) }

// NeedLeaderElection returns true: only one replica decides.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start decides until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.listen(ctx); err != nil {
		return err
	}
	// Contacts are received from now on.
	c.led = c.Now()
	c.Log.Info("deciding on nodes", "dryRun", c.DryRun, "maxOut", c.Budget.MaxOut.String(), "maxOutPerDomain", c.Budget.MaxOutPerDomain.String())
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := c.decide(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error(err, "deciding on nodes")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-c.wake:
		}
	}
}

// listen starts the informers of Nodes and leases, only on the leader.
func (c *Controller) listen(ctx context.Context) error {
	for _, source := range []struct {
		what    client.Object
		handler interface {
			OnAdd(obj any, first bool)
			OnUpdate(before, after any)
			OnDelete(obj any)
		}
	}{
		{&coordinationv1.Lease{}, c.leases},
		{&corev1.Node{}, nodes{c.wake}},
		{&corev1.Pod{}, nil},
	} {
		informer, err := c.Informers.GetInformer(ctx, source.what)
		if err != nil {
			return fmt.Errorf("watching %T: %w", source.what, err)
		}
		if source.handler == nil {
			continue
		}
		handle, err := informer.AddEventHandler(source.handler)
		if err != nil {
			return fmt.Errorf("watching %T: %w", source.what, err)
		}
		for !handle.HasSynced() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// decide is one round: gather, decide, apply.
func (c *Controller) decide(ctx context.Context) error {
	objects, view, err := c.gather(ctx)
	if err != nil {
		return err
	}
	now := c.Now()
	plan := budget.Decide(c.Budget, view, now)
	c.remember(plan, now)
	c.metrics.show(plan)
	c.apply(ctx, objects, plan)
	return nil
}

// remember stores what the next view needs of this plan, and logs changes of partition and breaker.
func (c *Controller) remember(plan budget.Plan, now time.Time) {
	if plan.PartitionSuspected != c.was.PartitionSuspected {
		c.Log.Info("contact", "partitionSuspected", plan.PartitionSuspected, "message", map[bool]string{
			true: "nearly no node renews its lease: silent nodes are not evicted", false: "leases are renewed again"}[plan.PartitionSuspected])
	}
	if plan.Broken != c.was.Broken {
		c.Log.Info("breaker", "holds", plan.Broken, "red", plan.Red, "of", plan.Of)
	}
	if plan.PartitionSuspected {
		c.partitionSuspected = now
	}
	if plan.Broken || plan.Back {
		c.broken = now
	}
	c.was = plan
}
