package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/launch"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// pythonDir is where hack/python.sh prepares Python and PyTorch; the marker shows that it is complete.
const (
	pythonDir    = "/opt/holdfast-python"
	pythonMarker = ".ready"
)

// where identifies one cluster on this machine.
type where struct{ name, base string }

func (w *where) record() (*layout.Record, error) {
	rec, err := layout.ReadRecord(filepath.Join(w.base, w.name))
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("there is no cluster %s in %s; start it with: holdfast-dev up --name %s", w.name, w.base, w.name)
	}
	return rec, err
}

func rootCommand(w *where) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast-dev",
		Short:         "A Kubernetes cluster on one machine: stock control plane, real kubelets, simulated nodes",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&w.name, "name", "dev", "name of the cluster")
	root.PersistentFlags().StringVar(&w.base, "dir", host.DefaultBase, "where clusters are kept")
	root.Flags().Bool("version", false, "print the version") // Kubernetes adds a flag of that name for its own programs
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(
		upCommand(w),
		downCommand(w),
		statusCommand(w),
		kubeconfigCommand(w),
		imageCommand(w),
		nodeCommand(w),
		controlCommand(w),
		runCommand(w),
	)
	return root
}

func runCLI() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := rootCommand(&where{}).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-dev:", err)
		return 1
	}
	return 0
}

// words refuses another number of arguments, and prints the usage; most -1: no maximum.
func words(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if n := len(args); n >= least && (most < 0 || n <= most) {
			return nil
		}
		if most == 0 {
			return fmt.Errorf("%s takes flags only: remove %s; see %s --help", cmd.CommandPath(), strings.Join(args, " "), cmd.CommandPath())
		}
		return fmt.Errorf("write: %s; see %s --help", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())
	}
}

func upCommand(w *where) *cobra.Command {
	spec := layout.Spec{ExtraArgs: map[string][]string{}}
	var attached bool
	var extra []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and wait until its nodes are Ready and names resolve",
		Args:  words(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec.Name = w.name
			if err := addExtraArgs(spec.ExtraArgs, extra); err != nil {
				return err
			}
			if spec.PythonDir != "" {
				if _, err := os.Stat(filepath.Join(spec.PythonDir, pythonMarker)); err != nil {
					if cmd.Flags().Changed("python-dir") {
						return fmt.Errorf("%s is incomplete: %w; run hack/python.sh", spec.PythonDir, err)
					}
					spec.PythonDir = ""
				}
			}
			began := time.Now()
			say := func(line string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "[%5.1fs] %s\n", time.Since(began).Seconds(), line)
			}
			rec, err := launch.Up(cmd.Context(), w.base, spec, attached, say)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), rec.Spec.Env())
			if !attached {
				return nil
			}
			awaitEnd(cmd.Context(), cmd.InOrStdin())
			say("stopping")
			return host.Remove(rec)
		},
	}
	f := cmd.Flags()
	f.IntVar(&spec.Nodes, "nodes", 3, "real nodes: a kubelet with its own containerd each")
	f.IntVar(&spec.GPUsPerNode, "gpus", 2, "pretended GPUs of a real node")
	f.IntVar(&spec.Sim.Nodes, "sim-nodes", 0, "simulated nodes: objects without a machine, for scale")
	f.IntVar(&spec.Sim.GPUsPerNode, "sim-gpus", 8, "GPUs of a simulated node")
	f.IntVar(&spec.Sim.NodesPerRack, "sim-nodes-per-rack", 18, "simulated nodes with one rack label")
	f.IntVar(&spec.Sim.RacksPerZone, "sim-racks-per-zone", 8, "simulated racks with one zone label")
	f.StringVar(&spec.PythonDir, "python-dir", pythonDir, "folder offered to pods by the storage class "+layout.PythonStorageClass)
	f.StringToStringVar(&spec.NodeLabels, "node-label", nil, "label of all real nodes, key=value")
	f.StringArrayVar(&extra, "arg", nil, "further flag of a component, such as kube-apiserver=--v=4")
	f.BoolVar(&attached, "attached", false, "stay, and stop the cluster when standard input ends or on a signal")
	return cmd
}

func addExtraArgs(into map[string][]string, extra []string) error {
	for _, e := range extra {
		name, arg, ok := strings.Cut(e, "=")
		if _, known := components[name]; !ok || !known || name == "etcd" || name == "kubectl" || name == "kube-proxy" {
			return fmt.Errorf("--arg %q: write COMPONENT=--FLAG=VALUE with kube-apiserver, kube-controller-manager, kube-scheduler or kubelet", e)
		}
		into[name] = append(into[name], arg)
	}
	return nil
}

// awaitEnd returns when in ends, which happens when the caller's process ends, or when ctx ends.
func awaitEnd(ctx context.Context, in io.Reader) {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	select {
	case <-ctx.Done():
	case <-ended:
	}
}

func downCommand(w *where) *cobra.Command {
	var stale, all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove all it made; works on dead ones, too",
		Args:  words(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			say := func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
			switch {
			case stale:
				return host.RemoveDead(w.base, say)
			case all:
				recs, err := host.Records(w.base)
				if err != nil {
					return err
				}
				for _, rec := range recs {
					if err := host.Remove(rec); err != nil {
						return err
					}
					say("removed cluster " + rec.Spec.Name)
				}
				return nil
			}
			rec, err := layout.ReadRecord(filepath.Join(w.base, w.name))
			if os.IsNotExist(err) {
				say("there is no cluster " + w.name)
				return nil
			}
			if err != nil {
				return err
			}
			if err := host.Remove(rec); err != nil {
				return err
			}
			say("removed cluster " + w.name)
			return nil
		},
	}
	cmd.Flags().BoolVar(&stale, "stale", false, "remove only clusters whose processes have ended")
	cmd.Flags().BoolVar(&all, "all", false, "remove every cluster in --dir")
	return cmd
}

func statusCommand(w *where) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the clusters of this machine, or the one that --name names",
		Args:  words(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			recs, err := host.Records(w.base)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				only, err := w.record()
				if err != nil {
					return err
				}
				recs = []*layout.Record{only}
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%-12s %-9s %5s %5s %-16s %9s  %s\n", "NAME", "PHASE", "NODES", "SIM", "ADDRESSES", "MEMORY", "KUBECONFIG")
			for _, rec := range recs {
				s := &rec.Spec
				phase := "Dead"
				if host.Alive(rec.Supervisor) {
					phase = string(layout.Starting)
					if st, err := layout.ReadStatus(s.Dir); err == nil {
						phase = string(st.Phase)
					}
				}
				memory := "-"
				if b, err := host.MemoryBytes(rec.Cgroups); err == nil {
					memory = fmt.Sprintf("%d MiB", b>>20)
				}
				fmt.Fprintf(out, "%-12s %-9s %5d %5d %-16s %9s  %s\n", s.Name, phase, s.Nodes, s.Sim.Nodes, s.Supernet(), memory, s.Kubeconfig())
			}
			return nil
		},
	}
}

func kubeconfigCommand(w *where) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the lines that point a shell at the cluster",
		Args:  words(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rec, err := w.record()
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), rec.Spec.Env())
			return nil
		},
	}
}
