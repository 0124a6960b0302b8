package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// completeTimeout bounds the reads for a completion: a shell waits for it.
const completeTimeout = 5 * time.Second

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completer makes a completion of the one argument of a command from names that the cluster has. An error completes nothing.
func completer(flags *genericclioptions.ConfigFlags, names func(context.Context, client.Client, string) ([]string, error)) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		c, _, namespace, err := connect(flags, &warned{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		found, err := names(ctx, c, namespace)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return begin(found, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// begin returns the names that begin with a text, in order.
func begin(names []string, begun string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) })
	slices.Sort(names)
	return slices.Compact(names)
}

// completeJobs completes KIND/NAME and gang/NAME of the namespace's Gangs.
func completeJobs(flags *genericclioptions.ConfigFlags) completion { return completer(flags, jobNames) }

func jobNames(ctx context.Context, c client.Client, namespace string) (names []string, err error) {
	gangs := &v1alpha1.GangList{}
	if err := c.List(ctx, gangs, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for i := range gangs.Items {
		names = append(names, page.JobName(gangs.Items[i].Spec.JobRef), "gang/"+gangs.Items[i].Name)
	}
	return names, nil
}

// completeNodes completes node/NAME, and pod/NAME of pods of gangs in the namespace.
func completeNodes(flags *genericclioptions.ConfigFlags) completion {
	return completer(flags, nodeNames)
}

func nodeNames(ctx context.Context, c client.Client, namespace string) (names []string, err error) {
	list := &corev1.NodeList{}
	if err := c.List(ctx, list); err != nil && !unreadable(err) {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, "node/"+list.Items[i].Name)
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelGang}); err != nil && !unreadable(err) {
		return nil, err
	}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != "" {
			names = append(names, "pod/"+pods.Items[i].Name)
		}
	}
	return names, nil
}
