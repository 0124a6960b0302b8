package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"holdfast.dev/holdfast/test/devcluster"
)

const (
	nodesPerSecond = "nodes_per_s"
	// parallel is the number of concurrent requests when the limit is measured, the same as the product's.
	parallel = 32
	// timeout bounds every wait; after it the case fails.
	timeout = 3 * time.Minute
)

// sim is a cluster of simulated nodes.
type sim struct {
	*devcluster.Cluster
	config *rest.Config
	client *kubernetes.Clientset
	nodes  []string
}

// simulate returns the cluster of simulated nodes, the same for all cases of a run; run ends it.
func (b *bench) simulate(ctx context.Context) (*sim, error) {
	if b.sim != nil {
		return b.sim, nil
	}
	source, err := filepath.Abs(b.Root())
	if err != nil {
		return nil, err
	}
	c, err := devcluster.Up(
		ctx,
		devcluster.Options{SimNodes: b.nodes.Or(b.Quick, 60, 1500), Binary: filepath.Join(source, "bin/holdfast-dev"), Out: b.progress},
	)
	if err != nil {
		return nil, fmt.Errorf("starting a cluster: %w", err)
	}
	b.sim = &sim{Cluster: c}
	if err := b.sim.reach(ctx); err != nil {
		return nil, errors.Join(err, b.down()) // no case must get a half-made cluster
	}
	return b.sim, nil
}

// reach creates the clients and lists the nodes.
func (s *sim) reach(ctx context.Context) (err error) {
	if s.config, err = s.Config(); err != nil {
		return err
	}
	s.config.DisableCompression = true // watches should cost the API server as little as those of its own controllers
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return err
	}
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "devcluster.holdfast.dev/simulated=true"})
	if err != nil {
		return err
	}
	for i := range list.Items {
		s.nodes = append(s.nodes, list.Items[i].Name)
	}
	return nil
}

// seen counts names that a watch has shown and closes all when there are enough.
type seen struct {
	mu    sync.Mutex
	want  int
	names map[string]bool
	first time.Time
	last  time.Time
	all   chan struct{}
}

func newSeen(want int) *seen {
	return &seen{want: want, names: map[string]bool{}, all: make(chan struct{})}
}

func (s *seen) mark(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] || len(s.names) == s.want {
		return
	}
	s.last = time.Now()
	if s.names[name] = true; len(s.names) == 1 {
		s.first = s.last
	}
	if len(s.names) == s.want {
		close(s.all)
	}
}

// wait returns the time at which the last name was seen.
func (s *seen) wait(ctx context.Context) (time.Time, error) {
	select {
	case <-s.all:
	case <-ctx.Done():
	case <-time.After(timeout):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) < s.want && ctx.Err() != nil {
		return s.last, ctx.Err()
	}
	if len(s.names) < s.want {
		return s.last, fmt.Errorf("only %d of %d came about within %s", len(s.names), s.want, timeout)
	}
	return s.last, nil
}
