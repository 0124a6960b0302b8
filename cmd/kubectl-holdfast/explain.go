package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/explain"
	"holdfast.dev/holdfast/internal/kinds"
)

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	q := explaining{}
	cmd := &cobra.Command{
		Use:   "explain (KIND/NAME | gang/NAME)",
		Short: "where a job's pods are, what each recovery took and by what evidence, and why a job was given up",
		Long: `Where a job's pods are, what each recovery took and by what evidence, and why a job was given up. KIND is the
kind of the annotated object as kubectl spells it: job, vcjob (or jobs.batch.volcano.sh), jobset, pytorchjob.
NAME alone is enough where one opted-in job has it.`,
		Example: `  kubectl holdfast explain job/train -n team-a
  kubectl holdfast explain pytorchjob/train -w
  kubectl holdfast explain -A -l team=vision
  kubectl holdfast explain gang/train -o jsonpath={.status.step}`,
		ValidArgsFunction: completeJobs(flags),
	}
	out := outputFlag(cmd, "text", nameFormat)
	cmd.Flags().BoolVarP(&q.all, "all-namespaces", "A", false, "explain the jobs of all namespaces")
	cmd.Flags().StringVarP(&q.selector, "selector", "l", "", "explain the jobs whose objects have these labels")
	watch := watchFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 || !q.several() {
			q.what = strings.Join(args, " ")
			if q.several() {
				return fmt.Errorf("-A and -l choose jobs, so leave out %s", q.what)
			}
			return oneThing("explain", "explain")(cmd, args)
		}
		_, err := labels.Parse(q.selector)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return err
		}
		return out.follow(cmd.Context(), streams.Out, *watch, func(ctx context.Context) (shown, error) { return q.read(ctx, c, namespace) })
	}
	return cmd
}

// explaining is which jobs are explained: one, or those of a selection.
type explaining struct {
	what, selector string
	all            bool
}

func (q explaining) several() bool { return q.all || q.selector != "" }

// read explains the jobs as of now.
func (q explaining) read(ctx context.Context, c client.Client, namespace string) (s shown, err error) {
	var gangs []v1alpha1.Gang
	if q.several() {
		gangs, err = q.chosen(ctx, c, namespace)
	} else if g, notFound := find(ctx, c, namespace, q.what); notFound != nil {
		err = notFound
	} else {
		gangs = append(gangs, *g)
	}
	if err != nil {
		return s, err
	}
	all := []explain.Explanation{}
	var texts, names []string
	for i := range gangs {
		e, err := explanationOf(ctx, c, &gangs[i])
		if err != nil {
			return s, err
		}
		all, texts = append(all, e), append(texts, e.Text())
		names = append(names, "gang.holdfast.dev/"+gangs[i].Name)
		s.version += gangs[i].ResourceVersion + " "
	}
	s.text = func(format string) string {
		if format == nameFormat {
			return lines(names)
		}
		return strings.Join(texts, "\n")
	}
	if s.value = all; !q.several() {
		s.value = all[0]
	}
	return s, nil
}

// chosen are the Gangs of a selection of jobs.
func (q explaining) chosen(ctx context.Context, c client.Client, namespace string) ([]v1alpha1.Gang, error) {
	in := []client.ListOption{client.InNamespace(namespace)}
	if q.all {
		in = nil
	}
	list := &v1alpha1.GangList{}
	if err := c.List(ctx, list, in...); err != nil {
		return nil, fmt.Errorf("listing Gangs: %w", err)
	}
	if q.selector == "" {
		return list.Items, nil
	}
	selector, err := labels.Parse(q.selector)
	if err != nil {
		return nil, err
	}
	jobs := map[string]bool{}
	for _, k := range kinds.Served() {
		objects := &metav1.PartialObjectMetadataList{}
		kind := k.GroupVersionKind()
		kind.Kind += "List"
		objects.SetGroupVersionKind(kind)
		err := c.List(ctx, objects, append(in, client.MatchingLabelsSelector{Selector: selector})...)
		if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("listing %s: %w", resourceOf(k), err)
		}
		for i := range objects.Items {
			jobs[string(objects.Items[i].UID)] = true
		}
	}
	return slices.DeleteFunc(list.Items, func(g v1alpha1.Gang) bool { return !jobs[g.Spec.JobRef.UID] }), nil
}

// explanationOf explains a Gang as of now.
func explanationOf(ctx context.Context, c client.Reader, g *v1alpha1.Gang) (explain.Explanation, error) {
	nodes, unread, err := nodesOf(ctx, c, g)
	return explain.Of(g, nodes, unread, time.Now()), err
}

// oneThing refuses anything but one job or gang; verb is what is done to it.
func oneThing(command, verb string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("name what to %s: kubectl holdfast %s %s", verb, command, usable())
		case len(args) == 2 && !strings.Contains(args[0], "/"):
			return fmt.Errorf("write kind and name as one word: kubectl holdfast %s %s/%s", command, args[0], args[1])
		case len(args) > 1:
			return fmt.Errorf("one job or gang at a time, these are %d: %s", len(args), strings.Join(args, " "))
		}
		return nil
	}
}

// nodesOf reads the nodes that an explanation speaks of; to see them is not every user's right.
func nodesOf(ctx context.Context, c client.Reader, g *v1alpha1.Gang) (nodes []corev1.Node, unread []string, err error) {
	for _, name := range explain.NodesOf(g) {
		node := corev1.Node{}
		switch err := c.Get(ctx, types.NamespacedName{Name: name}, &node); {
		case err == nil:
			nodes = append(nodes, node)
		case apierrors.IsNotFound(err):
			unread = append(unread, fmt.Sprintf("node %s is not in the cluster any more", name))
		case apierrors.IsForbidden(err):
			return nil, []string{"you may not read nodes, so their state is left out: the ClusterRole " + ownName(nodesRole) + ", bound with a ClusterRoleBinding, allows it"}, nil
		default:
			return nil, nil, fmt.Errorf("reading node %s: %w", name, err)
		}
	}
	return nodes, unread, nil
}
