package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/explain"
)

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain (KIND/NAME | gang/NAME)",
		Short: "where a job's pods are, what each recovery took and by what evidence, and why a job was given up",
		Long: `Where a job's pods are, what each recovery took and by what evidence, and why a job was given up. KIND is the
kind of the annotated object as kubectl spells it: job, vcjob (or jobs.batch.volcano.sh), jobset, pytorchjob.
NAME alone is enough where one opted-in job has it.`,
		Example: `  kubectl holdfast explain job/train -n team-a
  kubectl holdfast explain pytorchjob/train
  kubectl holdfast explain gang/train -o json`,
		Args: oneThing("explain", "explain"),
	}
	out := outputFlag(cmd, "text")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.check(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return err
		}
		g, err := find(ctx, c, namespace, args[0])
		if err != nil {
			return err
		}
		nodes, unread, err := nodesOf(ctx, c, g)
		if err != nil {
			return err
		}
		e := explain.Of(g, nodes, unread, time.Now())
		return out.print(streams.Out, e, func(string) string { return e.Text() })
	}
	return cmd
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
			return nil, []string{"you may not read nodes, so their state is left out: the ClusterRole holdfast-nodes-view, bound with a ClusterRoleBinding, allows it"}, nil
		default:
			return nil, nil, fmt.Errorf("reading node %s: %w", name, err)
		}
	}
	return nodes, unread, nil
}
