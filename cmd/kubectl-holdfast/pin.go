package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/settings"
)

// pinPoll is how often the Gang is looked at for the coordinator's answer, pinTime how long by default.
const (
	pinPoll = 500 * time.Millisecond
	pinTime = time.Minute
)

// pinning is what people ask of one step.
type pinning struct {
	what       string
	step       int64
	generation int64
	off        bool // taken off the list
	wait       time.Duration
}

// pinCommand is pin, or unpin.
func pinCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams, off bool) *cobra.Command {
	p, name, short := pinning{off: off}, "pin", "have a step stay in storage until it is unpinned"
	if off {
		name, short = "unpin", "let a pinned step go once newer ones supersede it"
	}
	cmd := &cobra.Command{
		Use:     name + " KIND/NAME STEP",
		Short:   short,
		Example: fmt.Sprintf("  kubectl holdfast ckpt %s job/train 120 -n team-a", name),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("name the job and the step: kubectl holdfast ckpt %s KIND/NAME STEP, such as job/train 120", name)
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&p.generation, "generation", 0, "generation of the step, if several wrote a step of that number")
	cmd.Flags().DurationVar(&p.wait, "timeout", pinTime, "how long to wait for the coordinator's answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		p.what = args[0]
		if p.step, err = strconv.ParseInt(args[1], 10, 64); err != nil || p.step < 1 {
			return fmt.Errorf("step %q is invalid: write the number that ckpt ls shows in column STEP", args[1])
		}
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return err
		}
		said, err := p.carryOut(cmd.Context(), c, namespace)
		if err == nil {
			_, err = fmt.Fprintln(streams.Out, said)
		}
		return err
	}
	return cmd
}

// carryOut writes the wish on the job's object and waits until the coordinator has recorded it: from then on no removal touches the step.
func (p pinning) carryOut(ctx context.Context, c client.Client, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	g, err := find(ctx, c, namespace, p.what)
	if err != nil {
		return "", err
	}
	m, err := ckpt.Choose(g, p.step, p.generation, p.off)
	if err != nil {
		return "", err
	}
	named := fmt.Sprintf("step %d of generation %d", m.Step, m.Generation)
	if run := g.Status.Run; run != nil && run.Verdict != nil {
		return "the job is over: nothing removes its steps any more, pinned or not, and " + named + " stays until the job's folder is removed", nil
	}
	wish, err := p.wish(ctx, c, g, m)
	if err != nil {
		return "", err
	}
	now := &v1alpha1.Gang{}
	err = wait.PollUntilContextCancel(ctx, pinPoll, true, func(ctx context.Context) (bool, error) {
		now = &v1alpha1.Gang{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(g), now); err != nil {
			return false, client.IgnoreNotFound(err) // it is made anew, as long as there is the Job
		}
		switch pinned := ckpt.IsPinned(now, m); {
		case pinned != p.off:
			return ckpt.Answers(now, wish), nil // what is promised to an earlier wish may be taken back by the next
		case !p.off && !ckpt.IsRecorded(now, m):
			return false, errPassed
		}
		return false, nil
	})
	switch {
	case errors.Is(err, errPassed):
		off := p
		off.off = true
		_, more := off.wish(context.WithoutCancel(ctx), c, g, m)
		return "", errors.Join(fmt.Errorf("%s was superseded before the coordinator received the pin, and may be removed: %s", named, ckpt.Choices(now)), more)
	case wait.Interrupted(err):
		return "", fmt.Errorf("annotation %s of %s requests it, and the coordinator has not answered within %s: it is not promised yet. The coordinator receives it while a pod of the job is attached; see kubectl holdfast ckpt ls",
			v1alpha1.AnnotationPinnedCheckpoints, page.JobName(g.Spec.JobRef), p.wait)
	case err != nil:
		return "", fmt.Errorf("waiting for the coordinator's answer: %w", err)
	case p.off:
		return named + " is not pinned any more: it is removed after newer steps supersede it", nil
	}
	return named + " is pinned: it stays in storage until it is unpinned", nil
}

// errPassed says that a step ceased to be recorded before it was pinned.
var errPassed = errors.New("no longer recorded")

// wish writes the step on the list of the job's object, or takes it off, and returns the number of the wish that the answer must be to.
func (p pinning) wish(ctx context.Context, c client.Client, g *v1alpha1.Gang, m protocol.Mark) (int64, error) {
	var wish int64
	err := annotateJob(ctx, c, g, "a pin", v1alpha1.AnnotationPinnedCheckpoints, func(job *metav1.PartialObjectMetadata) (bool, error) {
		pins := settings.PinsOfJob(job)
		switch there := slices.Contains(pins, m); {
		case there != p.off: // it says so already
			wish = settings.PinWishOfJob(job)
			return false, nil
		case p.off:
			pins = slices.DeleteFunc(pins, func(o protocol.Mark) bool { return o == m })
		case len(pins) >= v1alpha1.MaxPins:
			return false, fmt.Errorf("annotation %s: %d steps are pinned, and that is the most: unpin one of %s", v1alpha1.AnnotationPinnedCheckpoints, len(pins), settings.PinsText(pins))
		default:
			pins = append(pins, m)
		}
		settings.SetPins(job, pins)
		wish = ckpt.NextWish(g, settings.PinWishOfJob(job))
		settings.SetPinWish(job, wish)
		return true, nil
	})
	return wish, err
}
