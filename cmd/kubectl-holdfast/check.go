package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/settings"
)

// checking is a user's request of a node check of one job.
type checking struct {
	what      string
	now, undo bool
	wait      time.Duration
}

func checkCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	k := checking{}
	cmd := &cobra.Command{
		Use:   "check KIND/NAME",
		Short: "have the pods of a job tried, alone and in pairs, before its next generation",
		Example: `  kubectl holdfast check job/train -n team-a
  kubectl holdfast check job/train -n team-a --now
  kubectl holdfast check job/train -n team-a --undo`,
	}
	cmd.Flags().BoolVar(&k.now, "now", false, "restart the ranks for it, instead of waiting for the next generation")
	cmd.Flags().BoolVar(&k.undo, "undo", false, "withdraw the request: the next generation begins without the check")
	cmd.Flags().DurationVar(&k.wait, "timeout", pinTime, "how long to wait for the coordinator's answer")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) != 1:
			return errors.New("name one job: kubectl holdfast check KIND/NAME, such as job/train")
		case k.now && k.undo:
			return errors.New("--undo withdraws a request: leave out --now")
		}
		k.what = args[0]
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return err
		}
		said, err := k.carryOut(cmd.Context(), c, namespace)
		if err == nil {
			_, err = fmt.Fprintln(streams.Out, said)
		}
		return err
	}
	return cmd
}

// carryOut writes the request on the job's object, and waits until the coordinator has taken it.
func (k checking) carryOut(ctx context.Context, c client.Client, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, k.wait)
	defer cancel()
	g, err := find(ctx, c, namespace, k.what)
	if err != nil {
		return "", err
	}
	name := page.JobName(g.Spec.JobRef)
	if run := g.Status.Run; run != nil && run.Verdict != nil {
		return name + " is over: no generation follows that could be checked", nil
	}
	wish, err := k.wish(ctx, c, g)
	switch {
	case err != nil:
		return "", err
	case k.undo:
		return "no node check of " + name + " is requested any more", nil
	}
	err = wait.PollUntilContextCancel(ctx, pinPoll, true, func(ctx context.Context) (bool, error) {
		now := &v1alpha1.Gang{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(g), now); err != nil {
			return false, client.IgnoreNotFound(err) // it is created again as long as its job exists
		}
		g = now
		return g.Status.Run != nil && g.Status.Run.CheckWish >= wish, nil
	})
	if wait.Interrupted(err) {
		return "", fmt.Errorf("annotation %s of %s has the request, and the coordinator has not taken it within %s. The coordinator receives it while a pod of the job is attached; the request stays",
			v1alpha1.AnnotationCheckWish, name, k.wait)
	}
	if err != nil {
		return "", fmt.Errorf("waiting for the coordinator's answer: %w", err)
	}
	return k.answer(g), nil
}

// answer says what the coordinator does about the request.
func (k checking) answer(g *v1alpha1.Gang) string {
	run := g.Status.Run
	said := "a node check of " + page.JobName(g.Spec.JobRef)
	n := run.NodeCheck
	switch {
	case run.Progress.WholeCommand:
		return said + " is impossible: its commands start no launcher that Holdfast recognizes"
	case n == nil || n.EndedAt != nil:
		return said + " was made: see kubectl holdfast explain"
	case n.Result != "Ordered":
		return fmt.Sprintf("%s is under way before generation %d", said, n.Generation)
	case k.now:
		return fmt.Sprintf("%s is due before generation %d, and its ranks restart for it now", said, n.Generation)
	}
	return fmt.Sprintf("%s is due before generation %d, whenever that begins; --now does not wait for that", said, n.Generation)
}

// wish writes the request on the job's object, or removes it, and returns its number.
func (k checking) wish(ctx context.Context, c client.Client, g *v1alpha1.Gang) (int64, error) {
	w := settings.CheckWish{}
	err := annotateJob(ctx, c, g, "a request", v1alpha1.AnnotationCheckWish, func(job *metav1.PartialObjectMetadata) (bool, error) {
		if !k.undo {
			newest := max(settings.CheckWishOfJob(job).Number, g.Spec.CheckWish)
			if g.Status.Run != nil {
				newest = max(newest, g.Status.Run.CheckWish)
			}
			w = settings.CheckWish{Number: newest + 1, Now: k.now}
		}
		settings.SetCheckWish(job, w)
		return true, nil
	})
	return w.Number, err
}
