package coordtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/coordinator/coordinatortest"
	"holdfast.dev/holdfast/elastic/quorum"
)

// Gang is a gang that the real coordinator leads.
type Gang struct {
	c    *Coordinator
	key  coordinator.Key
	pods []string
}

// Lead creates a gang of the pods, in this order, led by the real coordinator. It never copies steps to storage.
func (c *Coordinator) Lead(pods ...string) *Gang { return c.lead(coordinatortest.Gang{}, pods) }

// LeadAndCheck is Lead for a gang whose pods are tried before its first generation.
func (c *Coordinator) LeadAndCheck(pods ...string) *Gang {
	return c.lead(coordinatortest.Gang{Supervision: elastic.Supervision{NodeCheck: elastic.CheckFirst}}, pods)
}

// Check returns the newest node check.
func (g *Gang) Check() elastic.Check { return g.c.store.Gang(g.key).Record.Check }

// LeadAndStore is Lead for a gang that copies steps to storage without a pause.
func (c *Coordinator) LeadAndStore(pods ...string) *Gang {
	return c.lead(coordinatortest.Gang{Storage: time.Nanosecond}, pods)
}

// LeadElastic is Lead for a gang that goes on with fewer pods, at least so many.
func (c *Coordinator) LeadElastic(least int, pods ...string) *Gang {
	return c.lead(coordinatortest.Gang{Limits: quorum.Limits{Min: least}}, pods)
}

// Record returns the stored record.
func (g *Gang) Record() elastic.Record { return g.c.store.Gang(g.key).Record }

// Lose reports that the node of a pod is dead, and that the scheduler has none for the next pod of that name.
func (g *Gang) Lose(ctx context.Context, pod string) error {
	slot := elastic.Slot(slices.Index(g.pods, pod))
	dead := elastic.Termination{Slot: slot, Pod: g.uid(pod), Name: pod, Node: "node", Cause: "NodeUnreachable", Dead: true}
	if err := g.c.server.SetPendingReplacements(ctx, g.key, []elastic.Termination{dead}); err != nil {
		return err
	}
	placed := g.placed()
	placed[slot] = elastic.Placement{Slot: slot, Pod: "next-" + pod, Refusal: "no node"}
	return g.c.server.SetPlaced(ctx, g.key, placed)
}

// Return makes another pod of that name, which has a node.
func (g *Gang) Return(ctx context.Context, pod string) error {
	g.c.Forget(pod)
	if err := g.c.server.SetPendingReplacements(ctx, g.key, nil); err != nil {
		return err
	}
	return g.c.server.SetPlaced(ctx, g.key, g.placed())
}

// placed returns all pods with nodes.
func (g *Gang) placed() (out []elastic.Placement) {
	for slot, pod := range g.pods {
		out = append(out, elastic.Placement{Slot: elastic.Slot(slot), Pod: g.uid(pod), Node: "node"})
	}
	return out
}

func (g *Gang) uid(pod string) string {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return uid(pod, g.c.lives[pod])
}

func uid(pod string, life int) string { return fmt.Sprintf("%s-%d", pod, life) }

func (c *Coordinator) lead(kind coordinatortest.Gang, pods []string) *Gang {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.led++
	g := &Gang{c: c, key: coordinator.Key{Namespace: "test", Name: "gang", Job: fmt.Sprint("job-", c.led)}, pods: pods}
	kind.Members = len(pods)
	c.store.Add(g.key, kind)
	for _, pod := range pods {
		c.gangs[pod] = g
		g.create(pod)
		c.redial(pod)
	}
	return g
}

// create makes another pod of that name. The caller holds c.mu.
func (g *Gang) create(pod string) {
	c := g.c
	c.lives[pod]++
	c.callers.Set(pod, coordinator.Caller{Key: g.key, Slot: elastic.Slot(slices.Index(g.pods, pod)),
		Pod: elastic.Pod{UID: uid(pod, c.lives[pod]), Name: pod, Node: "node", Created: time.Now()}})
}

// redial makes an agent reconnect. The caller holds c.mu.
func (c *Coordinator) redial(pod string) {
	if cut := c.cut[pod]; cut != nil {
		cut()
	}
}

// Unlead ends the lead: the pods receive what the test sets by Direct.
func (g *Gang) Unlead() {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, pod := range g.pods {
		delete(g.c.gangs, pod)
		g.c.redial(pod)
	}
}

// Restarts returns the number of restarts.
func (g *Gang) Restarts() int { return g.c.store.Gang(g.key).Record.Restarts }

// GivenUp returns why the gang ended and its earlier failures; "": it has not ended.
func (g *Gang) GivenUp() string {
	r := g.c.store.Gang(g.key).Record
	if r.Verdict == nil {
		return ""
	}
	text := fmt.Sprintf("%s: %+v", r.Verdict.Reason, r.Verdict.Cause)
	for _, old := range slices.Backward(r.Recoveries) {
		text += fmt.Sprintf("\ngeneration %d began after %+v", old.Generation, old.Cause)
	}
	return text
}

// RestoreStep returns the step from which the newest generation started.
func (g *Gang) RestoreStep() uint64 { return uint64(g.c.store.Gang(g.key).Record.RestoreStep) }

// Durable returns the newest durable step, 0 for none, and the number of durable steps so far.
func (g *Gang) Durable() (step uint64, manifests int) {
	kept := g.c.store.Gang(g.key)
	if d := kept.Record.Durable; d != nil {
		step = uint64(d.Step)
	}
	return step, kept.Manifests
}

// CommonStep returns the newest common step that agents received.
func (g *Gang) CommonStep() uint64 {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	common := uint64(0)
	for _, pod := range g.pods {
		if d := g.c.sent[pod]; d.GetOrder() == v1.Order_ORDER_RUN {
			common = max(common, d.GetCommonStep())
		}
	}
	return common
}
