package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/explain"
	"holdfast.dev/holdfast/internal/settings"
)

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain (job/NAME | gang/NAME)",
		Short: "where a job's pods are, what each recovery took and by what evidence, and why a job was given up",
		Example: `  kubectl holdfast explain job/train -n team-a
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
			return fmt.Errorf("name what to %s: kubectl holdfast %s job/NAME, or gang/NAME", verb, command)
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

// find reads the Gang of "job/NAME", "gang/NAME" or, for a gang, "NAME".
func find(ctx context.Context, c client.Reader, namespace, what string) (*v1alpha1.Gang, error) {
	kind, name, found := strings.Cut(what, "/")
	if !found {
		kind, name = "gang", what
	}
	var job *batchv1.Job
	switch strings.ToLower(kind) {
	case "job", "jobs", "job.batch", "jobs.batch":
		job = &batchv1.Job{}
		if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, job); err != nil {
			return nil, explainJobError(err, namespace, name)
		}
	case "gang", "gangs", "gang.holdfast.dev", "gangs.holdfast.dev":
	default:
		return nil, fmt.Errorf("cannot explain a %q: use job/NAME or gang/NAME", kind)
	}
	g := &v1alpha1.Gang{}
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, g)
	switch {
	case err == nil && job != nil && g.Spec.JobRef.UID != string(job.UID):
		return nil, fmt.Errorf("gang %s in namespace %s belongs to an older job of the same name; the controller will replace it in a moment, try again", name, namespace)
	case err == nil:
		return g, nil
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("this cluster has no Gangs (%w): install Holdfast with its manifests, then create the job again", err)
	case apierrors.IsNotFound(err) && job != nil:
		return nil, noGang(job)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no gang %s in namespace %s: name another namespace with -n, or see all with kubectl get gangs -A", name, namespace)
	}
	return nil, fmt.Errorf("reading gang %s in namespace %s: %w", name, namespace, err)
}

func explainJobError(err error, namespace, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no job %s in namespace %s: name another namespace with -n, or see all with kubectl get jobs -A", name, namespace)
	}
	return fmt.Errorf("reading job %s in namespace %s: %w", name, namespace, err)
}

// noGang says why a job has none and what to do.
func noGang(job *batchv1.Job) error {
	if _, admitted := settings.AdmittedJob(job); admitted {
		return fmt.Errorf("job %s has no Gang yet: try again in a moment; if that does not help, check whether holdfast-controller runs in namespace %s", job.Name, v1alpha1.Namespace)
	}
	if s, errs := settings.JobSettings(job); s.Enabled && len(errs) == 0 {
		return fmt.Errorf(`job %s was annotated with %s: "true" after it was created, and its pods cannot change any more: delete it and create it again with the annotation`, job.Name, v1alpha1.AnnotationEnabled)
	}
	return fmt.Errorf(`job %s is not opted in: create it with the annotation %s: "true"`, job.Name, v1alpha1.AnnotationEnabled)
}
