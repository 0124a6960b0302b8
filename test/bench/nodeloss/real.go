package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

const (
	// realNodes is the number of nodes of the job, plus one spare.
	realNodes = 3
	// stepLimit bounds the time from a fault until training resumes; a longer one is a failure, not a figure.
	stepLimit = 2 * time.Minute
	// plainLimit bounds the wait for plain torchrun after a drain: several times a new pod and a cold start.
	plainLimit = time.Minute
	// healLimit bounds the time until a node can be used again: the hold-off of a lost GPU is 30 s.
	healLimit = 2 * time.Minute
)

// real is a cluster of real nodes with Holdfast, and what was observed there.
type real struct {
	*harness.Cluster
	marks   *marks
	trainer *trainer // of the one Holdfast job; nil until a case needs it
	failed  []string // nodes that lost a GPU before: their next hold-off is longer
	// ctx bounds the goroutines that follow nodes and pods; stop ends it before the cluster ends.
	ctx  context.Context
	stop context.CancelFunc
}

// onNodes returns the cluster of real nodes, the same for all cases of a run. It ends the one of simulated nodes, so that nothing else
// runs.
func (b *bench) onNodes(ctx context.Context) (*real, error) {
	if b.real != nil {
		return b.real, nil
	}
	if err := b.down(); err != nil {
		return nil, err
	}
	source, err := filepath.Abs(b.Root())
	if err != nil {
		return nil, err
	}
	script, err := os.ReadFile(filepath.Join(source, "test/bench/recovery/train.py"))
	if err != nil {
		return nil, fmt.Errorf("reading the training script: %w", err)
	}
	c, err := harness.Up(ctx, source, devcluster.Options{Nodes: realNodes, Args: []string{fmt.Sprintf("--gpus=%d", ranksEach)}, Out: b.progress})
	if err != nil {
		return nil, err
	}
	b.real = &real{Cluster: c}
	b.real.ctx, b.real.stop = context.WithCancel(ctx)
	if err := b.real.furnish(ctx, string(script)); err != nil {
		return nil, errors.Join(err, b.down()) // no case must get a half-made cluster
	}
	return b.real, nil
}

// furnish installs Holdfast and the objects that the jobs share.
func (r *real) furnish(ctx context.Context, script string) (err error) {
	if err := r.Install(ctx); err != nil {
		return fmt.Errorf("installing Holdfast: %w", err)
	}
	for _, o := range room(script) {
		if err := r.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	if r.marks, err = r.watch(r.ctx); err != nil {
		return err
	}
	return r.allHealthy(ctx)
}

// down ends the clusters that this run started.
func (b *bench) down() (err error) {
	if b.sim != nil {
		err, b.sim = b.sim.Down(), nil
	}
	if b.real != nil {
		b.real.stop()
		err, b.real = errors.Join(err, b.real.Down()), nil
	}
	return err
}

// marks has the times at which a taint was first observed.
type marks struct {
	mu sync.Mutex
	at map[string]time.Time // by node and key; absent while the node lacks the taint
}

func newMarks() *marks { return &marks{at: map[string]time.Time{}} }

// look records a Node as observed at a time.
func (m *marks) look(n *corev1.Node, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range []string{v1alpha1.TaintUnhealthy, v1alpha1.TaintOutage} {
		has := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		if _, had := m.at[n.Name+key]; has && !had {
			m.at[n.Name+key] = at
		} else if !has {
			delete(m.at, n.Name+key)
		}
	}
}

// tainted is the time at which the present taint of that key was observed.
func (m *marks) tainted(node, key string) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.at[node+key]
	return at, ok
}

func (r *real) watch(ctx context.Context) (*marks, error) {
	m := newMarks()
	informer := informers.NewSharedInformerFactory(r.Kube(), 0).Core().V1().Nodes().Informer()
	look := func(obj any) {
		if n, ok := obj.(*corev1.Node); ok {
			m.look(n, time.Now())
		}
	}
	if _, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, obj any) { look(obj) },
	}); err != nil {
		return nil, err
	}
	go informer.Run(ctx.Done())
	if !clientcache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, ctx.Err()
	}
	return m, nil
}

// healthy waits until a node accepts the next pod: its daemon reports it healthy, and no taint or cordon excludes pods.
func (r *real) healthy(ctx context.Context, node string) error {
	return r.Until(ctx, node+" is healthy and takes pods", healLimit, func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		if err := r.Client().Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
			return false, err.Error()
		}
		well := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == v1alpha1.ConditionHealthy && c.Status == corev1.ConditionTrue
		})
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		return well && ready && !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 && n.Annotations[v1alpha1.AnnotationOutage] == "",
			fmt.Sprintf("healthy %t, ready %t, taints %v", well, ready, n.Spec.Taints)
	})
}

// allHealthy waits until every node is.
func (r *real) allHealthy(ctx context.Context) error {
	for _, n := range r.Nodes() {
		if err := r.healthy(ctx, n.Name); err != nil {
			return err
		}
	}
	return nil
}

// leaders are the nodes of the leading controller and scheduler. Their loss would cost more, so the cases choose another node if they can.
func (r *real) leaders(ctx context.Context) ([]string, error) {
	var out []string
	for _, lease := range harness.ControlPlane { // each lease is named like its Deployment
		p, err := r.Leader(ctx, lease)
		if err != nil {
			return nil, err
		}
		if p != nil {
			out = append(out, p.Spec.NodeName)
		}
	}
	return out, nil
}
