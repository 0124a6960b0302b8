// Command holdfast-node is the daemon of one node. The daemon reads NVML and the kernel log, computes a verdict, and
// writes the verdict to its own Node object. A restarted daemon comes to the same verdict.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast.dev/holdfast/internal/configfile"
)

// version is set at link time.
var version = "dev"

// libraries are the paths of NVIDIA's library, as seen from the daemon's container; the first that can be loaded is used. The manifests
// choose which of the node's folders the container mounts.
var libraries = []string{
	"libnvidia-ml.so.1", // mounted by NVIDIA's container runtime
	// a driver container, or an extension that replaces it
	"/host/run/nvidia/driver/usr/lib/" + triplet() + "/libnvidia-ml.so.1", "/host/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
	"/host/run/nvidia/driver/usr/lib/libnvidia-ml.so.1",
	"/host/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", // GKE
	// the node's own packages; Debian's links lead through /etc/alternatives, which is not mounted here
	"/host/usr/lib/" + triplet() + "/libnvidia-ml.so.1", "/host/usr/lib/" + triplet() + "/nvidia/current/libnvidia-ml.so.1",
	"/host/usr/lib64/libnvidia-ml.so.1", "/host/usr/lib/libnvidia-ml.so.1",
	"/host/usr/local/glibc/usr/lib/libnvidia-ml.so.1", "/host/usr/local/glibc/lib/libnvidia-ml.so.1", // Talos
	"/host/usr/lib/nvidia/tesla/libnvidia-ml.so.1", // Bottlerocket
}

// metricsOff is the value of --metrics-address that turns metrics off.
const metricsOff = "0"

// configKind is the kind of the file that --config names.
const configKind = "NodeConfiguration"

func triplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

func main() {
	// A small process that must not disturb the node's work.
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-node:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := options{kmsgFD: -1}
	cmd := &cobra.Command{
		Use:           "holdfast-node",
		Short:         "judges this node's GPUs and writes the verdict to its Node object",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "name of the Node to write; default: environment variable NODE_NAME")
	f.StringVar(&o.kmsg, "kmsg", "/dev/kmsg", "kernel log")
	f.StringVar(&o.bootID, "boot-id", "/proc/sys/kernel/random/boot_id", "file whose content changes at each boot")
	f.StringSliceVar(&o.libraries, "nvml", libraries, "paths of NVIDIA's library, as seen in the container; the first that can be loaded is used")
	f.StringVar(&o.probe, "probe", probe(), "program that queries NVML; it may hang for ever, so it is a child process")
	f.DurationVar(&o.deadline, "deadline", 5*time.Second, "time without a response of NVML after which it counts as hanging")
	f.DurationVar(&o.start, "start-deadline", 30*time.Second, "the same until its first response, while it may have to initialize all GPUs")
	f.StringVar(&o.metrics, "metrics-address", ":8080", "address of /metrics; 0 turns it off")
	f.StringVar(&o.logs, "logging-format", logJSON, "format of log lines: json or text")
	f.IntVar(&o.user, "user", 65532, "user and group to become once the kernel log is open; 0, if only root may open NVIDIA's devices, stays root without capabilities")
	load := configfile.Flag(f, configKind)
	cmd.PreRunE = func(*cobra.Command, []string) error { return load() }
	f.IntVar(&o.kmsgFD, kmsgFlag, -1, "open kernel log, from the part of this program that had the right to open it")
	if err := f.MarkHidden(kmsgFlag); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// probe is the default program that queries NVML: it lies beside this one.
func probe() string {
	self, err := os.Executable()
	if err != nil {
		return "/holdfast-nvml"
	}
	return filepath.Join(filepath.Dir(self), "holdfast-nvml")
}

func (o options) validate() error {
	switch {
	case o.node == "":
		return fmt.Errorf("--node-name is empty: name the Node, or set NODE_NAME as the manifests do")
	case o.deadline < time.Second || o.start < o.deadline:
		return fmt.Errorf("--deadline %s, --start-deadline %s: use at least 1s, and no less for the start", o.deadline, o.start)
	case len(o.libraries) == 0 || strings.TrimSpace(o.libraries[0]) == "":
		return fmt.Errorf("--nvml is empty: give at least one path")
	case o.logs != logJSON && o.logs != logText:
		return fmt.Errorf("--logging-format=%q: use %s or %s", o.logs, logJSON, logText)
	case o.user < 0:
		return fmt.Errorf("--user=%d: give the number of a user, or 0 for root", o.user)
	case !executable(o.probe):
		return fmt.Errorf("--probe=%q cannot be run: put holdfast-nvml beside holdfast-node, or give its path", o.probe)
	case o.metrics == metricsOff:
		return nil
	}
	if _, _, err := net.SplitHostPort(o.metrics); err != nil {
		return fmt.Errorf("--metrics-address=%q: give an address such as :8080, or %s for none: %w", o.metrics, metricsOff, err)
	}
	return nil
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
