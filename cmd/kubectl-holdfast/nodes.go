package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/nodes"
)

func nodesCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	all, selector := false, ""
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "which nodes are sick, dead or held, by what evidence, and what to do about them",
		Example: `  kubectl holdfast nodes
  kubectl holdfast nodes --all -o wide
  kubectl holdfast nodes -l pool=gpu -w`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("nodes takes no names (%s): it shows the nodes that need a look, with --all every one", strings.Join(args, " "))
			}
			return nil
		},
	}
	out := outputFlag(cmd, "text", "wide", nameFormat)
	cmd.Flags().BoolVar(&all, "all", all, "show healthy nodes as well")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "show only nodes with these labels")
	watch := watchFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		chosen, err := labels.Parse(selector)
		if err != nil {
			return err
		}
		c, _, _, err := connect(flags, nil)
		if err != nil {
			return err
		}
		return out.follow(cmd.Context(), streams.Out, *watch, func(ctx context.Context) (shown, error) {
			in, err := readNodes(ctx, c, client.MatchingLabelsSelector{Selector: chosen})
			if err != nil {
				return shown{}, err
			}
			report := nodes.Of(in, time.Now())
			return shown{report, report.States(), func(format string) string {
				if format == nameFormat {
					return lines(report.Names(all))
				}
				return report.Text(all, format == "wide")
			}}, nil
		})
	}
	return cmd
}

// nodesRole is the ClusterRole that allows the command.
const nodesRole = "holdfast-nodes-view"

// readNodes reads the report's objects; lists that this user may not read are noted and left out, except for the nodes themselves.
func readNodes(ctx context.Context, c client.Reader, chosen ...client.ListOption) (nodes.Input, error) {
	in := nodes.Input{}
	list := &corev1.NodeList{}
	if err := c.List(ctx, list, chosen...); err != nil {
		if apierrors.IsForbidden(err) {
			return in, fmt.Errorf("you may not list nodes (%w): request a ClusterRoleBinding to the ClusterRole %s", err, ownName(nodesRole))
		}
		return in, fmt.Errorf("listing nodes: %w", err)
	}
	in.Nodes = list.Items
	leases := &coordinationv1.LeaseList{}
	switch err := c.List(ctx, leases, client.InNamespace(corev1.NamespaceNodeLease)); {
	case err == nil:
		in.Leases = leases.Items
	case unreadable(err):
		in.Notes = append(in.Notes, "you may not list leases in namespace "+corev1.NamespaceNodeLease+": its age is unknown")
	default:
		return in, fmt.Errorf("listing node leases: %w", err)
	}
	gangs := &v1alpha1.GangList{}
	switch err := c.List(ctx, gangs); {
	case err == nil:
		in.Gangs = append([]v1alpha1.Gang{}, gangs.Items...)
	case unreadable(err):
		in.Notes = append(in.Notes, "there are no Gangs on this cluster, or you may not list them in all namespaces: GANG-PODS is unknown")
	default:
		return in, fmt.Errorf("listing Gangs: %w", err)
	}
	return in, nil
}
