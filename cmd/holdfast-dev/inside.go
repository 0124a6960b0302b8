package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/devcluster/enter"
	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/nvml"
)

func nodeCommand(w *where) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Break, repair and enter real nodes"}
	each := func(use, short string, do func(rec *layout.Record, i int) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " NODE", Short: short, Args: words(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				rec, err := w.record()
				if err != nil {
					return err
				}
				i, err := rec.Spec.NodeIndex(args[0])
				if err != nil {
					return err
				}
				return do(rec, i)
			},
		}
	}
	cmd.AddCommand(
		each("cut", "Drop all traffic of a node", func(rec *layout.Record, i int) error { return enter.Cut(cmd.Context(), rec, i, true) }),
		each("mend", "Stop dropping the traffic of a node", func(rec *layout.Record, i int) error { return enter.Cut(cmd.Context(), rec, i, false) }),
		each("off", "Switch a node off: all its processes end at once", func(rec *layout.Record, i int) error { return host.PowerOff(rec, rec.Spec.NodeName(i)) }),
		each("on", "Switch a node on again", host.PowerOn),
		each("kill", "Kill kubelet, containerd and all containers of a node, and keep them down", host.KillNode),
		failCommand(w),
		each("heal", "Make all GPUs of a node healthy again", func(rec *layout.Record, i int) error { return host.FailGPU(rec, i, nvml.Fault{}) }),
		each("revive", "Start a killed node again", host.PowerOn),
		&cobra.Command{
			Use: "log NODE TEXT", Short: "Write a line to a node's kernel log; <n> in front sets its priority, such as \"<3>NVRM: Xid …\"", Args: words(2, 2),
			RunE: func(cmd *cobra.Command, args []string) error {
				rec, err := w.record()
				if err != nil {
					return err
				}
				i, err := rec.Spec.NodeIndex(args[0])
				if err != nil {
					return err
				}
				return host.LogKernel(rec, i, args[1])
			},
		},
		&cobra.Command{
			Use: "exec NODE -- COMMAND…", Short: "Run a command inside a node", Args: words(2, -1),
			RunE: func(cmd *cobra.Command, args []string) error {
				rec, err := w.record()
				if err != nil {
					return err
				}
				c, err := enter.Node(cmd.Context(), rec, args[0], args[1:]...)
				if err != nil {
					return err
				}
				return passThrough(c)
			},
		},
	)
	return cmd
}

func controlCommand(w *where) *cobra.Command {
	cmd := &cobra.Command{Use: "control", Short: "Stop and start programs of the control plane"}
	each := func(use, short string, do func(rec *layout.Record, program string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " PROGRAM", Short: short, Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				rec, err := w.record()
				if err != nil {
					return err
				}
				return do(rec, args[0])
			},
		}
	}
	cmd.AddCommand(
		each("stop", "End a program, such as kube-apiserver, at once and keep it down", host.StopProgram),
		each("start", "Allow a stopped program to start again", host.StartProgram),
	)
	return cmd
}

// failCommand makes a GPU fail as on a real machine: NVML, kernel log and device plugin report it.
func failCommand(w *where) *cobra.Command {
	var f nvml.Fault
	var recovery int
	cmd := &cobra.Command{
		Use: "fail NODE", Short: "Make a GPU of a node fail", Args: words(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("recovery") {
				f.Recovery = &recovery
			}
			if f == (nvml.Fault{GPU: f.GPU}) {
				return errors.New("give the fault: --xid, --lost, --no-handle, --hang, --links-down, --lanes or --recovery; \"node heal\" makes it well again")
			}
			rec, err := w.record()
			if err != nil {
				return err
			}
			i, err := rec.Spec.NodeIndex(args[0])
			if err != nil {
				return err
			}
			return host.FailGPU(rec, i, f)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.GPU, "gpu", 0, "which GPU of the node, counted from 0")
	flags.IntVar(&f.Xid, "xid", 0, "the driver reports this Xid, with its consequences")
	flags.BoolVar(&f.Lost, "lost", false, "the GPU no longer responds, without a line in the kernel log")
	flags.BoolVar(&f.Nameless, "no-handle", false, "the driver counts the GPU and returns no new handle for it")
	flags.IntVar(&f.LinksDown, "links-down", 0, "number of the GPU's NVLinks that are down")
	flags.IntVar(&f.Lanes, "lanes", 0, "number of the GPU's PCIe lanes in use")
	flags.BoolVar(&f.Hang, "hang", false, "calls of the driver's library no longer return, on the whole node")
	flags.IntVar(&recovery, "recovery", 0, "the driver's recovery action from now on, such as 1: reset the GPU, 2: reboot")
	return cmd
}

// runCommand runs a program of the machine with the cluster's names and kubeconfig.
func runCommand(w *where) *cobra.Command {
	return &cobra.Command{
		Use: "run -- COMMAND…", Short: "Run a command of this machine for which Service names resolve", Args: words(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rec, err := w.record()
			if err != nil {
				return err
			}
			c, err := enter.Named(cmd.Context(), rec, args...)
			if err != nil {
				return err
			}
			return passThrough(c)
		},
	}
}

func passThrough(c *exec.Cmd) error {
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	return err
}

func imageCommand(w *where) *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Build images from files of this machine and load them into nodes"}
	cmd.AddCommand(imageBuildCommand(), imageLoadCommand(w))
	return cmd
}

func imageBuildCommand() *cobra.Command {
	var b imageBuild
	cmd := &cobra.Command{
		Use: "build NAME:TAG", Short: "Write an image archive", Args: words(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				b.name = args[0]
			} else if !b.base {
				return errors.New("name the image, such as holdfast.dev/agent:v1")
			}
			return b.write()
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&b.add, "add", nil, "file or folder to add, SOURCE:DESTINATION")
	f.StringArrayVar(&b.entrypoint, "entrypoint", nil, "entry point, once per word")
	f.StringArrayVar(&b.env, "env", nil, "environment variable, KEY=VALUE")
	f.StringVar(&b.user, "user", "65532:65532", "uid:gid of the image's processes")
	f.StringVar(&b.output, "output", "", "archive to write")
	f.BoolVar(&b.libraries, "libraries", false, "add the shared libraries that the image's programs need")
	f.BoolVar(&b.base, "base", false, "build the training base image instead: a shell, core tools, shared libraries")
	return cmd
}

// imageBuild has the options of image build.
type imageBuild struct {
	name, user, output   string
	add, entrypoint, env []string
	base, libraries      bool
}

func (b *imageBuild) write() error {
	var out bytes.Buffer
	img, err := b.image()
	if err != nil {
		return err
	}
	if err := img.Write(&out); err != nil {
		return err
	}
	output := cmp.Or(b.output, strings.NewReplacer("/", "_", ":", "_").Replace(img.Name)+".tar")
	return os.WriteFile(filepath.Clean(output), out.Bytes(), 0o644)
}

func (b *imageBuild) image() (*image.Image, error) {
	img := &image.Image{Entrypoint: b.entrypoint, Env: b.env, User: b.user}
	if b.base {
		var err error
		if img, err = image.Base(pythonDir); err != nil {
			return nil, err
		}
	}
	img.Name = cmp.Or(b.name, img.Name)
	for _, a := range b.add {
		src, dst, ok := strings.Cut(a, ":")
		if !ok {
			return nil, fmt.Errorf("--add %q: write SOURCE:DESTINATION", a)
		}
		files, err := image.Copy(src, dst)
		if err != nil {
			return nil, err
		}
		img.Files = append(img.Files, files...)
	}
	if b.libraries {
		return img, img.AddLibraries()
	}
	return img, nil
}

func imageLoadCommand(w *where) *cobra.Command {
	return &cobra.Command{
		Use: "load ARCHIVE…", Short: "Load image archives into all real nodes", Args: words(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rec, err := w.record()
			if err != nil {
				return err
			}
			var nodes []string
			for i := range rec.Spec.Nodes {
				nodes = append(nodes, rec.Spec.NodeName(i))
			}
			for _, a := range args {
				tar, err := os.ReadFile(a)
				if err != nil {
					return err
				}
				if err := enter.ImportAll(cmd.Context(), rec, nodes, tar); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
