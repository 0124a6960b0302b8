package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

const (
	// evictFor is how long a node takes no new pods by default; the others bound what users give.
	evictFor      = 24 * time.Hour
	shortestEvict = time.Minute
	longestEvict  = 30 * 24 * time.Hour
	// maxReason bounds a reason, in bytes.
	maxReason = 256
	// labelControlPlane marks the nodes of the control plane.
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	// evictPoll is how often the Node is read for the controller's decision.
	evictPoll = 200 * time.Millisecond
)

// evicting is a user's request about one node, or the node of one pod.
type evicting struct {
	kind, name, namespace string
	reason                string
	span, wait            time.Duration
	now, undo             bool
}

func evictCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	e := evicting{}
	cmd := &cobra.Command{
		Use:   "evict node/NAME | pod/NAME",
		Short: "move pods of gangs off a node as planned, and keep new pods off it for a time",
		Example: `  kubectl holdfast evict node/gpu-07 --reason "fan replaced at 14:00" --for 4h
  kubectl holdfast evict pod/train-0-x7k2p -n team-a --reason "slow NVLink"
  kubectl holdfast evict node/gpu-07 --undo`,
	}
	cmd.Flags().StringVar(&e.reason, "reason", "", "why, for the annotation, the event and the jobs' users (required)")
	cmd.Flags().DurationVar(&e.span, "for", evictFor, "how long the node takes no new pods")
	cmd.Flags().BoolVar(&e.now, "now", false, "do not wait for the outage budget")
	cmd.Flags().BoolVar(&e.undo, "undo", false, "withdraw the request: the node takes new pods again")
	cmd.Flags().DurationVar(&e.wait, "timeout", timeout, "how long to wait for the controller's decision")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New("name one node or one pod: kubectl holdfast evict node/NAME or pod/NAME")
		}
		return e.read(args[0])
	}
	cmd.ValidArgsFunction = completeNodes(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return err
		}
		e.namespace = namespace
		said, err := e.carryOut(cmd.Context(), c)
		if err == nil {
			_, err = fmt.Fprintln(streams.Out, said)
		}
		return err
	}
	return cmd
}

// read reads the argument and checks the flags.
func (e *evicting) read(what string) error {
	word, name, _ := strings.Cut(what, "/")
	switch strings.ToLower(word) {
	case "node", "nodes", "no":
		e.kind = "node"
	case "pod", "pods", "po":
		e.kind = "pod"
	}
	e.name = name
	switch {
	case e.kind == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("%q names no node and no pod: use node/NAME or pod/NAME", what)
	case e.undo && (e.reason != "" || e.now):
		return errors.New("--undo withdraws a request: leave out --reason and --now")
	case e.undo:
		return nil
	case strings.TrimSpace(e.reason) == "":
		return errors.New(`--reason is missing: write why, such as --reason "fan replaced at 14:00"`)
	case len(e.reason) > maxReason:
		return fmt.Errorf("--reason has %d bytes: shorten it to %d", len(e.reason), maxReason)
	case e.span < shortestEvict || e.span > longestEvict:
		return fmt.Errorf("--for %s: give a time from 1m to 720h, such as 24h; to keep a node empty for longer, use kubectl cordon", e.span)
	}
	return nil
}

// carryOut writes the request on the Node, or withdraws it, and waits for the controller's decision. What was carried out before is not
// carried out again.
func (e *evicting) carryOut(ctx context.Context, c client.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.wait)
	defer cancel()
	node, pod, err := e.find(ctx, c)
	switch {
	case err != nil:
		return "", e.explain(err)
	case node == "":
		return e.title() + " has no request to withdraw", nil
	}
	by := ""
	if review := (&authenticationv1.SelfSubjectReview{}); !e.undo && c.Create(ctx, review) == nil {
		by = review.Status.UserInfo.Username
	}
	for {
		stands, err := e.write(ctx, c, node, pod, by)
		switch {
		case apierrors.IsConflict(err):
			continue
		case err != nil:
			return "", e.explain(err)
		}
		return e.await(ctx, c, node, stands)
	}
}

// title names what the user named.
func (e *evicting) title() string {
	if e.kind == "pod" {
		return "pod " + e.namespace + "/" + e.name
	}
	return "node " + e.name
}

// find returns the node and, for pod/NAME, the pod. A pod that was moved already, and has no successor of its name, is found by the request
// on its former node. An empty node means that there is no request to withdraw.
func (e *evicting) find(ctx context.Context, c client.Client) (string, *v1alpha1.NodeEvictionPod, error) {
	if e.kind == "node" {
		return e.name, nil, nil
	}
	node, pod, missing := "", (*v1alpha1.NodeEvictionPod)(nil), error(nil)
	if !e.undo {
		if node, pod, missing = e.live(ctx, c); missing == nil {
			return node, pod, nil
		}
	}
	list := &corev1.NodeList{}
	if err := c.List(ctx, list); err != nil {
		return "", nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range list.Items {
		r, err := v1alpha1.NodeEvictionOf(&list.Items[i])
		if err == nil && r != nil && r.Pod != nil && r.Pod.Namespace == e.namespace && r.Pod.Name == e.name &&
			(e.undo || time.Now().Before(r.Until.Time)) {
			return list.Items[i].Name, r.Pod, nil
		}
	}
	return "", nil, missing
}

// live returns the node and the identity of the pod as it is now; an error: there is none that could be moved.
func (e *evicting) live(ctx context.Context, c client.Client) (string, *v1alpha1.NodeEvictionPod, error) {
	pod := &corev1.Pod{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: e.namespace, Name: e.name}, pod); err != nil {
		return "", nil, err
	}
	switch _, member := membership.GangOf(pod); {
	case !member:
		return "", nil, fmt.Errorf("%s belongs to no gang, and Holdfast moves only pods of gangs: use kubectl delete pod", e.title())
	case membership.Ended(pod) || pod.DeletionTimestamp != nil:
		return "", nil, fmt.Errorf("%s has ended or is being replaced already: name the job's present pod (kubectl holdfast explain)", e.title())
	case pod.Spec.NodeName == "":
		return "", nil, fmt.Errorf("%s has no node yet: there is nothing to move", e.title())
	}
	return pod.Spec.NodeName, &v1alpha1.NodeEvictionPod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, nil
}

// write writes the request, or removes it, and returns the one that stands now.
func (e *evicting) write(
	ctx context.Context,
	c client.Client,
	name string,
	pod *v1alpha1.NodeEvictionPod,
	by string,
) (*v1alpha1.NodeEviction, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return nil, err
	}
	had, unread := v1alpha1.NodeEvictionOf(node)
	before := node.DeepCopy()
	patch := func() error {
		return c.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner("kubectl-holdfast"))
	}
	if e.undo {
		_, suspected := node.Annotations[v1alpha1.AnnotationSuspicions]
		if had == nil && unread == nil && (pod != nil || !suspected) {
			return nil, nil
		}
		delete(node.Annotations, v1alpha1.AnnotationEvict)
		if pod == nil {
			delete(node.Annotations, v1alpha1.AnnotationSuspicions)
		}
		return nil, patch()
	}
	if _, plane := node.Labels[labelControlPlane]; plane {
		return nil, fmt.Errorf("node %s belongs to the control plane (label %s): use kubectl drain", name, labelControlPlane)
	}
	at := time.Now()
	want := &v1alpha1.NodeEviction{By: by, Reason: e.reason, Now: e.now, Pod: pod}
	want.At, want.Until = metav1.NewMicroTime(at), metav1.NewMicroTime(at.Add(e.span))
	if had != nil && at.Before(had.Until.Time) {
		same := had.Pod == nil && pod == nil || had.Pod != nil && pod != nil && had.Pod.UID == pod.UID
		if !same {
			return nil, fmt.Errorf("node %s takes no new pods already, until %s, requested %s: withdraw that first with kubectl holdfast evict node/%s --undo",
				name, had.Until.UTC().Format(time.RFC3339), described(had), name)
		}
		if had.Now || !e.now {
			return had, nil
		}
		want, had.Now = had, true
	}
	text, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationEvict, string(text))
	return want, patch()
}

// described says for what pod, by whom and why a request was made.
func described(r *v1alpha1.NodeEviction) string {
	text := ""
	if r.Pod != nil {
		text = "for pod " + r.Pod.Namespace + "/" + r.Pod.Name + " "
	}
	if r.By != "" {
		text += "by " + r.By + " "
	}
	return fmt.Sprintf("%s(%s)", text, r.Reason)
}

// await waits until the controller has decided on the request.
func (e *evicting) await(ctx context.Context, c client.Client, name string, r *v1alpha1.NodeEviction) (string, error) {
	said := ""
	err := wait.PollUntilContextCancel(ctx, evictPoll, true, func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			return false, err
		}
		o, err := v1alpha1.NodeOutageOf(node)
		if err == nil {
			said = answer(name, r, o)
		}
		return said != "", err
	})
	if wait.Interrupted(err) {
		return "", fmt.Errorf("annotation %s of node %s has the request, and the controller has not acted on it within %s: check that holdfast-controller runs in namespace %s with --nodes=act; the request stays",
			v1alpha1.AnnotationEvict, name, e.wait, ownNamespace())
	}
	return said, err
}

// withdrawn are the causes of decisions that end with --undo.
var withdrawn = []string{v1alpha1.CauseEvictedByHand, v1alpha1.CauseNodeSuspected}

// answer says what the controller decided; empty: it has not yet. Without a request it was withdrawn.
func answer(node string, r *v1alpha1.NodeEviction, o *v1alpha1.NodeOutage) string {
	switch {
	case r == nil && o == nil:
		return "node " + node + " takes new pods again"
	case r == nil && !slices.Contains(withdrawn, o.Cause):
		return fmt.Sprintf("no request stands for node %s, and Holdfast itself decided %s (%s): see kubectl holdfast nodes", node, o.Decision, o.Cause)
	case r == nil || o == nil:
		return ""
	}
	closed := fmt.Sprintf("node %s takes no new pods until %s (end it with kubectl holdfast evict node/%s --undo)",
		node, r.Until.UTC().Format(time.RFC3339), node)
	switch {
	case o.Decision == v1alpha1.DecisionHold && !r.Now:
		return fmt.Sprintf("%s; its pods stay until the outage budget allows it (%s): %s; --now does not wait", closed, o.Reason, o.Message)
	case o.Decision != v1alpha1.DecisionEvict:
		return ""
	case o.Pod == "":
		return closed + "; all pods of gangs on it move to other nodes"
	case r.Pod != nil && o.Pod == r.Pod.UID:
		return fmt.Sprintf("%s; pod %s/%s moves to another node", closed, r.Pod.Namespace, r.Pod.Name)
	}
	return ""
}

// evictRole is the ClusterRole that allows the command.
const evictRole = "holdfast-evict"

// explain adds the remedy to an error of the API server.
func (e *evicting) explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not evict (%w): the ClusterRole %s, bound with a ClusterRoleBinding, allows it", err, ownName(evictRole))
	case apierrors.IsNotFound(err) && e.kind == "pod":
		return fmt.Errorf("there is no %s: name another namespace with -n, or see the job's pods with kubectl holdfast explain", e.title())
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s: see kubectl get nodes", e.title())
	}
	return err
}
