package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/internal/retry"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// maxNote is the most bytes of an event's note.
const maxNote = 1024

// order is the order in which decisions are written: first those that stop work, last those that end an outage.
var order = map[budget.Outcome]int{budget.Evict: 0, budget.Hold: 1, budget.Exclude: 2, budget.None: 3}

// apply writes the decisions on the Nodes, and reports the changes.
func (c *Controller) apply(ctx context.Context, objects map[string]*corev1.Node, plan budget.Plan) {
	due := slices.DeleteFunc(slices.Clone(plan.Decisions), func(d budget.Decision) bool { return !c.due(objects[d.Node], d) })
	slices.SortStableFunc(due, func(a, b budget.Decision) int { return cmp.Compare(order[a.Outcome], order[b.Outcome]) })
	results := make([]written, len(due))
	errs := make([]error, len(due))
	var wg sync.WaitGroup
	slots := make(chan struct{}, writers)
	for i, d := range due {
		slots <- struct{}{}
		wg.Go(func() {
			results[i], errs[i] = c.write(ctx, objects[d.Node], d.Outage)
			<-slots
		})
	}
	wg.Wait()
	for i, d := range due {
		c.metrics.wrote(errs[i])
		if errs[i] != nil {
			if ctx.Err() == nil {
				c.Log.Error(errs[i], "writing a decision failed; retrying", "node", d.Node)
			}
			continue
		}
		c.written[d.Node] = results[i]
		if d.Changed {
			c.announce(objects[d.Node], d)
		}
	}
}

// due reports whether a Node must be written: the decision is new, or another client has changed what was written.
func (c *Controller) due(node *corev1.Node, d budget.Decision) bool {
	if _, behind := c.written[node.Name]; d.Changed || behind || c.DryRun {
		return d.Changed
	}
	if d.Outcome == budget.None {
		return hasOutage(node)
	}
	changed, err := putOutage(node.DeepCopy(), d.Outage)
	return changed || err != nil
}

// write writes one decision on its Node.
func (c *Controller) write(ctx context.Context, cached *corev1.Node, o budget.Outage) (written, error) {
	if c.DryRun {
		return written{uid: cached.UID, outage: o}, nil
	}
	after, err := c.change(ctx, cached, func(node *corev1.Node) (bool, error) { return putOutage(node, o) })
	if err != nil {
		return written{}, err
	}
	return written{uid: after.UID, version: after.ResourceVersion, outage: o}, nil
}

// change patches a Node, unless put changes nothing, and returns the Node as it is then. The patch may have the whole list of taints, so
// it is valid only for the Node's version; after a conflict it is computed again from the present Node.
func (c *Controller) change(
	ctx context.Context, cached *corev1.Node, put func(*corev1.Node) (bool, error),
) (after *corev1.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	node := cached
	pauses := retry.AfterConflict()
	err = retry.Do(
		ctx,
		func(err error) (time.Duration, bool) { return pauses.Step(), apierrors.IsConflict(err) },
		func(ctx context.Context) error {
			if after != nil { // the newest: the cache was behind
				node = &corev1.Node{}
				if err := c.Writer.Get(ctx, client.ObjectKeyFromObject(cached), node); err != nil {
					return fmt.Errorf("reading it again: %w", err)
				}
				if node.UID != cached.UID {
					return errors.New("it was re-created under its name")
				}
			}
			after = node.DeepCopy()
			changed, err := put(after)
			if err != nil || !changed {
				return err
			}
			err = c.Writer.Patch(
				ctx,
				after,
				client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}),
				client.FieldOwner(FieldManager),
			)
			return client.IgnoreNotFound(err)
		},
	)
	if err != nil {
		return nil, fmt.Errorf("patching Node %s: %w", cached.Name, err)
	}
	return after, nil
}

// words are the names of decisions in events.
var words = map[budget.Outcome]string{
	budget.None:    "NodeFreed",
	budget.Exclude: "NodeExcluded",
	budget.Hold:    "NodeHeld",
	budget.Evict:   "NodeGivenUp",
}

// announce reports a decision in an event on the Node, in the log and in a counter.
func (c *Controller) announce(node *corev1.Node, d budget.Decision) {
	c.metrics.decided(d)
	c.Log.Info(
		"decided",
		"node",
		d.Node,
		"decision",
		cmp.Or(string(d.Outcome), "None"),
		"cause",
		d.Cause,
		"reason",
		d.Reason,
		"dead",
		d.Dead,
		"message",
		d.Message,
		"dryRun",
		c.DryRun,
	)
	kind, note := corev1.EventTypeWarning, d.Cause
	if d.Message != "" {
		note += ": " + d.Message
	}
	if d.Outcome == budget.None {
		kind, note = corev1.EventTypeNormal, "the node takes new pods again"
	}
	if c.DryRun {
		note = "dry run, nothing was changed: " + note
	}
	c.Recorder.Eventf(node, nil, kind, words[d.Outcome], "Decide", "%s", note[:min(len(note), maxNote)])
}
