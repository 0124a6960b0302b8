package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/ckptagent/python"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
)

// formats are the formats of holdfast.export.
var formats = []string{"dcp", "torch", "safetensors"}

// exporting has the options of an export.
type exporting struct {
	what, dir, to, out, python string
	step                       int64
	trust                      bool
}

// exportCommand runs the client's exporter, which this binary contains: only torch reads tensors.
func exportCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	e := exporting{}
	cmd := &cobra.Command{
		Use:   "export [KIND/NAME] OUT --dir DIR --to FORMAT",
		Short: "write a step as files that stock PyTorch or safetensors read; needs a Python with torch on this machine",
		Example: `  kubectl holdfast ckpt export /scratch/llama --dir /mnt/claim/llama-5d3f --to dcp
  kubectl holdfast ckpt export job/llama /scratch/llama.safetensors --dir /mnt/claim --to safetensors --step 120
  kubectl holdfast ckpt export job/llama /scratch/llama.pt --dir /mnt/claim --to torch --python /venv/bin/python3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return errors.New("name what to write: kubectl holdfast ckpt export [KIND/NAME] OUT --dir DIR --to " + strings.Join(formats, "|"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&e.dir, "dir", "", "the claim, or one job's folder in it, where it is mounted on this machine")
	cmd.Flags().StringVar(&e.to, "to", "", "dcp: a folder for torch.distributed.checkpoint.load; torch: a file for torch.load; safetensors: a file of tensors only")
	cmd.Flags().Int64Var(&e.step, "step", 0, "the step to export; default: the newest complete one")
	cmd.Flags().StringVar(&e.python, "python", "python3", "a Python with torch")
	cmd.Flags().BoolVar(&e.trust, "trust", false, "unpickle all objects: only if the job alone can write to the folder")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e.out = args[len(args)-1]
		if len(args) == 2 {
			e.what = args[0]
		}
		if err := e.check(); err != nil {
			return err
		}
		folder, err := e.folder(cmd.Context(), flags)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return e.run(ctx, folder, streams)
	}
	return cmd
}

func (e exporting) check() error {
	switch {
	case e.dir == "":
		return errors.New("--dir: name where the job's claim is mounted on this machine. A step is not exported in a pod that trains: it would take the memory of its ranks; " +
			"if the claim can be mounted only in the cluster, start a pod with it and with the job's image (docs/checkpoints.md)")
	case !slices.Contains(formats, e.to):
		return fmt.Errorf("--to %q: must be one of %s", e.to, strings.Join(formats, ", "))
	case e.step < 0:
		return fmt.Errorf("--step %d: give the number of a step", e.step)
	}
	return nil
}

// folder is the job's folder: the named job's, or the only one that --dir has or is.
func (e exporting) folder(ctx context.Context, flags *genericclioptions.ConfigFlags) (string, error) {
	name := ""
	if e.what != "" {
		c, _, namespace, err := connect(flags, nil)
		if err != nil {
			return "", err
		}
		g, err := find(ctx, c, namespace, e.what)
		if err != nil {
			return "", err
		}
		name = ckpt.FolderOf(g)
	}
	storage, err := question{dir: e.dir}.lookHere(ctx, name)
	switch {
	case err != nil:
		return "", err
	case len(storage.Folders) == 0:
		return "", fmt.Errorf("--dir %s has no folder %s: no step of the job is in this claim", e.dir, name)
	case len(storage.Folders) > 1:
		return "", fmt.Errorf("--dir %s has the folders of several jobs: name the job, as KIND/NAME, or one of %s", e.dir, names(storage.Folders))
	}
	if inside := filepath.Join(e.dir, storage.Folders[0].Name); isFolder(inside) {
		return inside, nil
	}
	return e.dir, nil
}

func isFolder(name string) bool {
	at, err := os.Stat(name)
	return err == nil && at.IsDir()
}

// names lists folders, up to a readable number.
func names(folders []inspect.Folder) string {
	var all []string
	for _, f := range folders[:min(len(folders), 20)] {
		all = append(all, f.Name)
	}
	if more := len(folders) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}

// run lets Python write the step, with the client from this binary, and passes its output on.
func (e exporting) run(ctx context.Context, folder string, streams genericclioptions.IOStreams) error {
	client, err := unpack()
	if err != nil {
		return err
	}
	defer os.RemoveAll(client)
	folder, out, python, err := e.fromHere(folder)
	if err != nil {
		return err
	}
	args := []string{"-m", "holdfast.export", folder, out, "--to", e.to}
	if e.step > 0 {
		args = append(args, "--step", fmt.Sprint(e.step))
	}
	if e.trust {
		args = append(args, "--trust")
	}
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Dir = client // -m imports from this folder first: in the current one, such as a claim, others may have put a holdfast or a torch
	cmd.Env = append(os.Environ(), "PYTHONPATH="+strings.TrimSuffix(client+string(os.PathListSeparator)+os.Getenv("PYTHONPATH"), string(os.PathListSeparator)))
	cmd.Stdout, cmd.Stderr = streams.Out, streams.ErrOut
	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.ExitCode() == 1:
		return &exitError{code: 1} // Python has printed the reason
	case errors.As(err, &ended):
		return fmt.Errorf("%s -m holdfast.export ended with %s; its output is above. It needs Python 3.10 or newer with torch 2.4 or newer: --python names another one", e.python, ended.ProcessState)
	case err != nil:
		return fmt.Errorf("--python %s: %w: name a Python 3.10 or newer with torch 2.4 or newer, such as the one that trains", e.python, cmp.Or(errors.Unwrap(err), err))
	}
	return nil
}

// fromHere makes the user's relative paths absolute.
func (e exporting) fromHere(in string) (folder, out, python string, err error) {
	paths := []string{in, e.out, e.python}
	for i := range paths {
		if i == 2 && !strings.ContainsRune(e.python, filepath.Separator) {
			continue // PATH resolves it
		}
		if paths[i], err = filepath.Abs(paths[i]); err != nil {
			return "", "", "", fmt.Errorf("finding where this is: %w", err)
		}
	}
	return paths[0], paths[1], paths[2], nil
}

// unpack writes the client to a temporary folder. It has only the package: no site hook, which acts in a job's pods.
func unpack() (string, error) {
	dir, err := os.MkdirTemp("", "kubectl-holdfast-")
	if err != nil {
		return "", fmt.Errorf("making a folder for the client: %w", err)
	}
	client, err := fs.Sub(python.Files, "holdfast")
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "holdfast"), client)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("writing the client into %s: %w", dir, err)
	}
	return dir, nil
}
