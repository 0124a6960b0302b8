package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/nodehealth/budget"
)

// written is a written decision that the cache may not show yet.
type written struct {
	uid     types.UID
	version string
	outage  budget.Outage
}

// shown reports whether the cached Node is at least as new as the write.
func (w written) shown(node *corev1.Node) bool {
	if node.UID != w.uid {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, w.version)
	return err != nil || order >= 0
}

// nodeLoad is the gang pods and agents of one node.
type nodeLoad struct {
	pods, agents int
	lastContact  time.Time
}

// gather reads the caches; callers must not change the Nodes.
func (c *Controller) gather(ctx context.Context) (map[string]*corev1.Node, budget.View, error) {
	view := budget.View{Led: c.led, PartitionSuspected: c.partitionSuspected, Broken: c.broken}
	loads, err := c.nodeLoads(ctx)
	if err != nil {
		return nil, view, err
	}
	list := &corev1.NodeList{}
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, view, fmt.Errorf("listing nodes: %w", err)
	}
	objects := make(map[string]*corev1.Node, len(list.Items))
	view.Nodes = make([]budget.Node, 0, len(list.Items))
	for i := range list.Items {
		node := &list.Items[i]
		objects[node.Name] = node
		n, err := budgetNode(node, c.DomainLabels)
		c.unreadable(node.Name, err)
		lease, known := c.leases.of(node.Name)
		n.Lease, n.LeaseRenewed, n.LeaseDuration = known, lease.renewed, lease.duration
		load := loads[node.Name]
		n.GangPods, n.Agents, n.AgentContact = load.pods, load.agents, load.lastContact
		n.Stands = c.stands(node, n.Stands)
		view.Nodes = append(view.Nodes, n)
	}
	for name := range c.written {
		if objects[name] == nil {
			delete(c.written, name)
		}
	}
	return objects, view, nil
}

// stands returns the present decision on a Node: the last written one until the cache shows it.
func (c *Controller) stands(node *corev1.Node, shows budget.Outage) budget.Outage {
	w, ok := c.written[node.Name]
	switch {
	case c.DryRun || ok && !w.shown(node):
		return w.outage
	default:
		delete(c.written, node.Name)
		return shows
	}
}

// unreadable logs an unreadable annotation of a Node once.
func (c *Controller) unreadable(node string, err error) {
	switch {
	case err == nil:
		delete(c.notified, node)
	case c.notified[node] != err.Error():
		c.notified[node] = err.Error()
		c.Log.Error(err, "a node's annotations cannot be decoded; the earlier decision stays", "node", node)
	}
}

// nodeLoads counts pods of gangs, and agents, by node. An agent that never reported to this process may have reported to an earlier leader
// if its pod ran before.
func (c *Controller) nodeLoads(ctx context.Context) (map[string]nodeLoad, error) {
	list := &corev1.PodList{}
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods of gangs: %w", err)
	}
	loads := map[string]nodeLoad{}
	for i := range list.Items {
		pod := &list.Items[i]
		node, ok := gangPodOn(pod)
		if !ok {
			continue
		}
		on := loads[node]
		on.pods++
		var at time.Time
		contacted := false
		if c.Contacts != nil {
			at, contacted = c.Contacts.LastContact(string(pod.UID))
			started := pod.Status.StartTime
			contacted = contacted || pod.Status.Phase == corev1.PodRunning && started != nil && started.Time.Before(c.led)
		}
		if contacted {
			on.agents++
		}
		if at.After(on.lastContact) {
			on.lastContact = at
		}
		loads[node] = on
	}
	return loads, nil
}
