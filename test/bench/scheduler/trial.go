package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
)

const (
	// creators is the number of pods created concurrently.
	creators = 32
	// boundTimeout bounds the time until all are bound.
	boundTimeout = 10 * time.Minute
)

// trial is one run of one system in one case, with its own control plane.
type trial struct {
	k      kase
	sys    system
	source string

	plane *plane
	seen  *watched
	// pods are those that the trial creates itself, without Jobs.
	pods []*corev1.Pod
	// raw binds if the system has no scheduler; beside are the processes of an installation.
	raw    *rawBinder
	beside []*process
	// first is the time before the first pod's creation, last after the last one's.
	first, last time.Time
	// whole is the creation time of the last pod of each gang that should be refused, by name; guarded by mu.
	whole map[string]time.Time
	mu    sync.Mutex
}

// outcome is the samples of one trial, in order.
type outcome []sample

type sample struct {
	metric, unit string
	value        float64
}

func (t *trial) run(ctx context.Context) (out outcome, err error) {
	dir, err := os.MkdirTemp("", "bench-scheduler-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			err = fmt.Errorf("%w (what was left: %s)", err, dir)
		}
	}()
	if t.plane, err = newPlane(ctx, dir, filepath.Join(t.source, "bin/holdfast-dev")); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.plane.stop()) }()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	if t.sys.jobs {
		beside, err := t.install(ctx)
		if beside != nil {
			defer beside.stop()
		}
		if err != nil {
			return nil, err
		}
		t.beside = []*process{beside.controller, beside.manager}
	}
	child, port, err := t.sys.start(ctx, t.plane, t.source, t.k.racks())
	if err != nil {
		return nil, err
	}
	if child != nil {
		defer child.stop()
	} else if t.raw, err = t.plane.rawBinder(ctx); err != nil {
		return nil, err
	} else {
		defer t.raw.cancel()
	}
	if t.seen, err = t.plane.watch(ctx, t.sys, t.names(true), t.names(false)); err != nil {
		return nil, err
	}
	defer t.seen.stop()
	for _, p := range t.beside {
		go func() {
			<-p.ended
			t.seen.fail(fmt.Errorf("%s ended: %s", p.name, p.tail()))
		}()
	}
	create := t.create
	if t.sys.jobs {
		create = t.createJobs
	}
	if err := create(ctx); err != nil {
		return nil, err
	}
	if out, err = t.measure(ctx, child, port); err != nil {
		return out, err
	}
	return out, t.check(ctx)
}

// prepare creates the nodes and the objects that the system needs before the pods.
func (t *trial) prepare(ctx context.Context) error {
	now := time.Now()
	nodes := make([]*corev1.Node, t.k.nodes)
	for i := range nodes {
		nodes[i] = node(i, now)
	}
	if err := figure.Each(creators, nodes, func(n *corev1.Node) error {
		_, err := t.plane.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("creating nodes: %w", err)
	}
	if t.sys.define != nil {
		if err := t.sys.define(ctx, t.plane, t.source); err != nil {
			return err
		}
	}
	for _, g := range t.k.groups {
		if t.sys.jobs {
			break
		}
		if g.name != "" && t.sys.group != nil {
			if err := t.sys.group(ctx, t.plane, g); err != nil {
				return fmt.Errorf("creating the object of gang %s: %w", g.name, err)
			}
		}
		for slot := range g.size {
			p := pod(g, slot)
			p.Spec.SchedulerName = t.sys.scheduler
			if g.name != "" && t.sys.join != nil {
				t.sys.join(p, g)
			}
			t.pods = append(t.pods, p)
		}
	}
	return nil
}

// names are the pods that should be bound, or those that should not.
func (t *trial) names(bound bool) map[string]bool {
	names := map[string]bool{}
	for _, g := range t.k.groups {
		for slot := range g.size {
			if g.fits(t.k.nodes) == bound {
				names[pod(g, slot).Name] = true
			}
		}
	}
	return names
}

func (t *trial) create(ctx context.Context) error {
	t.first, t.whole = time.Now(), map[string]time.Time{}
	never := t.names(false)
	err := figure.Each(creators, t.pods, func(p *corev1.Pod) error {
		_, err := t.plane.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		if gang := p.Labels[v1alpha1.LabelGang]; gang != "" && never[p.Name] {
			t.mu.Lock()
			t.whole[gang] = time.Now()
			t.mu.Unlock()
		}
		return err
	})
	t.last = time.Now()
	if err != nil {
		return fmt.Errorf("creating pods: %w", err)
	}
	return nil
}

func (t *trial) measure(ctx context.Context, child *process, port int) (outcome, error) {
	out := outcome{{"create", "s", t.last.Sub(t.first).Seconds()}}
	spent, err := t.spent(child)
	if err != nil {
		return out, err
	}
	var before writes
	if child != nil {
		if before, err = scrape(ctx, port); err != nil {
			return out, err
		}
	}
	if len(t.names(true)) > 0 {
		more, err := t.bindings(ctx, child, spent)
		out = append(out, more...)
		if err != nil {
			return out, err
		}
	}
	more, err := t.refusals(ctx, before, port)
	out = append(out, more...)
	if child != nil {
		after, err := scrape(ctx, port)
		if err != nil {
			return out, err
		}
		most, err := child.memory()
		if err != nil {
			return out, err
		}
		child.stop()
		out = append(out, sample{"scheduler_cpu", "s", child.cpu().Seconds()}, sample{"scheduler_memory", "MiB", most / (1 << 20)}, sample{"api_writes", "1", after.all})
	}
	return out, err
}

// bindings measures the time until the last pod is bound, and until the last event is written.
func (t *trial) bindings(ctx context.Context, child *process, before spending) (out outcome, err error) {
	if child == nil {
		if err := t.bindAll(ctx); err != nil {
			return nil, err
		}
	}
	first, last, err := t.seen.allBound(ctx)
	if err != nil {
		return nil, err
	}
	after, err := t.spent(child)
	if err != nil {
		return nil, err
	}
	out = outcome{
		{"first_created_to_last_bound", "s", last.Sub(t.first).Seconds()}, {firstBound, "s", first.Sub(t.last).Seconds()}, {lastBound, "s", last.Sub(t.last).Seconds()},
		{boundCPU, "s", (after.all - before.all).Seconds()},
	}
	if child == nil {
		err = t.writeEvents(ctx)
	} else {
		out = append(out, sample{"scheduler_last_bound_cpu", "s", (after.scheduler - before.scheduler).Seconds()})
	}
	if err != nil {
		return out, err
	}
	written, missing, err := t.seen.allTold(ctx)
	return append(out, sample{withEvents, "s", written.Sub(t.last).Seconds()}, sample{eventsAfter, "s", written.Sub(last).Seconds()},
		sample{"events_missing", "1", float64(missing)}), err
}

// spending is processor time: of the scheduler, and of all processes of the trial together, this one included.
type spending struct{ scheduler, all time.Duration }

func (t *trial) spent(child *process) (s spending, err error) {
	everybody := append([]*process{nil, t.plane.api, t.plane.etcd}, t.beside...)
	if child != nil {
		if s.scheduler, err = used(child); err != nil {
			return s, err
		}
	}
	s.all, err = used(everybody...)
	s.all += s.scheduler
	return s, err
}

// settle is how long no write about a refusal must follow, so that all are counted; settled bounds that.
const (
	settle  = 2 * time.Second
	settled = 2 * time.Minute
)

// lastWrites waits until the scheduler writes nothing more, and returns the number of its writes.
func lastWrites(ctx context.Context, port int) (last writes, err error) {
	for deadline := time.Now().Add(settled); ; {
		before := last
		if last, err = scrape(ctx, port); err != nil {
			return last, err
		}
		if last == before {
			return last, nil
		}
		if time.Now().After(deadline) {
			return last, fmt.Errorf("the scheduler still writes %s after a refusal", settled)
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return last, ctx.Err()
		}
	}
}

// refusals waits until every gang that does not fit has its refusal on one of its objects. Plain kube-scheduler and the limit have no
// gangs.
func (t *trial) refusals(ctx context.Context, before writes, port int) (outcome, error) {
	if len(t.whole) == 0 || t.sys.group == nil {
		return nil, nil
	}
	longest, err := t.seen.allRefused(ctx, t.whole)
	if err != nil {
		return nil, err
	}
	out := outcome{{visible, "s", longest.Seconds()}}
	if len(t.names(true)) == 0 {
		after, err := lastWrites(ctx, port)
		if err != nil {
			return out, err
		}
		out = append(out, sample{refusalWrites, "1", after.all - before.all})
	}
	return out, nil
}

// check reads every pod from the API server.
func (t *trial) check(ctx context.Context) error {
	list, err := t.plane.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		list.Items[i].Name = t.sys.id(list.Items[i].Name)
	}
	return errors.Join(verify(list.Items, t.names(true), t.names(false)), t.domains(list.Items))
}

// domains returns an error for a gang that must be in one rack and is not.
func (t *trial) domains(pods []corev1.Pod) error {
	rack := map[string]string{} // of nodes
	for i := range t.k.nodes {
		n := node(i, t.first)
		rack[n.Name] = n.Labels[labelRack]
	}
	racks := map[string]string{} // of gangs
	for i := range pods {
		p := &pods[i]
		if p.Annotations[v1alpha1.AnnotationTopologyRequired] == "" || p.Spec.NodeName == "" {
			continue
		}
		gang, at := p.Labels[v1alpha1.LabelGang], rack[p.Spec.NodeName]
		if other, ok := racks[gang]; ok && other != at {
			return fmt.Errorf("gang %s asked for one rack and is in %s and %s", gang, other, at)
		}
		racks[gang] = at
	}
	return nil
}

// verify checks the pods' nodes: each pod of must on a separate node, none of never on any.
func verify(pods []corev1.Pod, must, never map[string]bool) error {
	if len(pods) != len(must)+len(never) {
		return fmt.Errorf("there are %d pods, %d were created", len(pods), len(must)+len(never))
	}
	on := map[string]string{}
	for i := range pods {
		p := &pods[i]
		at := p.Spec.NodeName
		switch {
		case at == "" && must[p.Name]:
			return fmt.Errorf("pod %s is on no node", p.Name)
		case at != "" && never[p.Name]:
			return fmt.Errorf("pod %s, which fits nowhere or whose gang does not fit, is on node %s", p.Name, at)
		case at != "" && on[at] != "":
			return fmt.Errorf("pods %s and %s are both on node %s, which has GPUs for one", on[at], p.Name, at)
		}
		if at != "" {
			on[at] = p.Name
		}
	}
	return nil
}
