package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
)

// exitWrong: verify found a fault.
const exitWrong = 1

func ckptCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ckpt",
		Short: "list, verify, pin and export the steps of a job in storage",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: use ckpt ls, verify, pin, unpin or export", args[0])
			}
			return errors.New("a command is missing: kubectl holdfast ckpt ls KIND/NAME, or ckpt verify KIND/NAME, such as ckpt ls job/NAME")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(
		ckptPart(flags, streams, false, "list the steps in storage: size, age, which is recorded, which would be restored, what is incomplete and why"),
		ckptPart(flags, streams, true, "read every byte of every rank's file and report its state; exit code 1 if something is wrong"),
		pinCommand(flags, streams, false), pinCommand(flags, streams, true), exportCommand(flags, streams))
	return cmd
}

// ckptPart returns the command ls, or verify.
func ckptPart(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams, deep bool, short string) *cobra.Command {
	name, q := "ls", question{deep: deep}
	if deep {
		name = "verify"
	}
	cmd := &cobra.Command{
		Use:   name + " (KIND/NAME | gang/NAME | --dir DIR)",
		Short: short,
		Example: fmt.Sprintf(`  kubectl holdfast ckpt %[1]s job/train -n team-a
  kubectl holdfast ckpt %[1]s --dir /mnt/claim
  kubectl holdfast ckpt %[1]s job/train --dir /mnt/claim`, name),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil // --dir may replace the argument
			}
			return oneThing("ckpt "+name, "look at")(nil, args)
		},
	}
	cmd.ValidArgsFunction = completeJobs(flags)
	out := outputFlag(cmd, "text", "wide")
	cmd.Flags().StringVar(&q.dir, "dir", "", "the claim, or one job's folder in it, where it is mounted on this machine; without it a running pod is queried")
	if deep {
		cmd.Flags().Int64Var(&q.step, "step", 0, "read only this step")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if len(args) > 0 {
			q.what = args[0]
		}
		report, err := q.ask(cmd.Context(), flags)
		if err != nil {
			return err
		}
		text := report.List
		if deep {
			text = report.Verification
		}
		if err := out.print(streams.Out, report, func(format string) string { return text(format == "wide") }); err != nil {
			return err
		}
		if deep && len(report.Wrong) > 0 {
			return &exitError{code: exitWrong}
		}
		return nil
	}
	return cmd
}

// question has the options of a query of storage.
type question struct {
	what, dir string
	deep      bool
	step      int64
}

// ask reads storage, and the Gang's record before and after: a step that the record names both times must be in storage.
func (q question) ask(ctx context.Context, flags *genericclioptions.ConfigFlags) (ckpt.Report, error) {
	switch {
	case q.what == "" && q.dir == "":
		return ckpt.Report{}, errors.New("name the job, KIND/NAME, or where its claim is mounted on this machine, --dir DIR")
	case q.step < 0:
		return ckpt.Report{}, fmt.Errorf("--step %d: give the number of a step", q.step)
	case q.what == "":
		storage, err := q.lookHere(ctx, "")
		return ckpt.Of(ckpt.Input{Source: q.dir, Storage: storage, Step: q.step, At: time.Now()}), err
	}
	c, cfg, namespace, err := connect(flags, nil)
	if err != nil {
		return ckpt.Report{}, err
	}
	in := ckpt.Input{Source: q.dir, Step: q.step}
	if in.Before, err = q.gang(ctx, c, namespace); err != nil {
		return ckpt.Report{}, err
	}
	if q.dir != "" {
		in.Storage, err = q.lookHere(ctx, ckpt.FolderOf(in.Before))
	} else {
		in.Storage, in.Source, err = q.lookThere(ctx, c, cfg, in.Before)
	}
	if err != nil {
		return ckpt.Report{}, err
	}
	if in.Gang, err = q.gang(ctx, c, namespace); err != nil {
		return ckpt.Report{}, err
	}
	if in.Gang.UID != in.Before.UID {
		return ckpt.Report{}, fmt.Errorf("the job was re-created meanwhile: try again")
	}
	in.At = time.Now()
	return ckpt.Of(in), nil
}

func (q question) gang(ctx context.Context, c client.Client, namespace string) (*v1alpha1.Gang, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return find(ctx, c, namespace, q.what)
}

// lookHere reads a folder of this machine: the folder of one job, if the job is known.
func (q question) lookHere(ctx context.Context, folder string) (inspect.Storage, error) {
	storage, err := inspect.Look(ctx, q.dir, inspect.Options{Deep: q.deep, Step: q.step, Folder: folder})
	if err != nil {
		return storage, fmt.Errorf("looking into --dir: %w", err)
	}
	switch {
	case folder == "" && len(storage.Folders) == 0:
		return storage, fmt.Errorf("--dir %s holds no folder of a job (NAME-UID, with folders gen-N in it): give the folder where the claim is mounted, or one job's in it", q.dir)
	case folder != "" && len(storage.Folders) > 0 && storage.Folders[0].Name != folder:
		return storage, fmt.Errorf("--dir is the folder %s, and that of the job is named %s: give the folder where the claim is mounted, or omit the job's name", storage.Folders[0].Name, folder)
	}
	return ckpt.Clean(storage), nil
}

// lookThere lets the agent of a running pod read storage.
func (q question) lookThere(ctx context.Context, c client.Reader, cfg *rest.Config, g *v1alpha1.Gang) (inspect.Storage, string, error) {
	pod, container, err := podToAsk(ctx, c, g)
	if err != nil {
		return inspect.Storage{}, "", err
	}
	answer, err := askAgent(ctx, cfg, pod, container, q.words())
	if err != nil {
		return inspect.Storage{}, "", err
	}
	storage, err := ckpt.Parse(answer)
	if err == nil && storage.Verified != q.deep {
		err = errors.New("the agent did not carry out the request")
	}
	return ckpt.Clean(storage), "pod " + pod.Name, err
}

// words are the agent's arguments.
func (q question) words() []string {
	switch {
	case !q.deep:
		return []string{"ckpt", "ls"}
	case q.step > 0:
		return []string{"ckpt", "verify", fmt.Sprint(q.step)}
	}
	return []string{"ckpt", "verify"}
}
