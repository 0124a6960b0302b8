// Command holdfast-controller is the control plane of Holdfast in one process. Every replica serves admission and
// agents. The leading replica keeps Gangs current, decides about generations and carries these decisions out. If all
// replicas die, training continues.
package main

import (
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"holdfast.dev/holdfast/internal/configfile"
)

// version is set at link time.
var version = "dev"

// configKind is the kind of the file that --config names.
const configKind = "ControllerConfiguration"

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-controller:", err)
		os.Exit(1)
	}
}

// useLogger gives the logger to all libraries: client-go logs by klog.
func useLogger(log logr.Logger) {
	ctrl.SetLogger(log)
	klog.SetLogger(log)
}

func command() *cobra.Command {
	o := defaults()
	cmd := &cobra.Command{
		Use:           "holdfast-controller",
		Short:         "admission, gangs, generations and the coordinator that agents attach to",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			log, err := logger(os.Stderr, o.logs)
			if err != nil {
				return err
			}
			useLogger(log)
			return run(ctrl.SetupSignalHandler(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.webhookAddress, "webhook-address", o.webhookAddress, "address to answer admission at")
	f.StringVar(&o.coordinatorAddress, "coordinator-address", o.coordinatorAddress, "address to serve agents at")
	f.StringVar(&o.healthAddress, "health-address", o.healthAddress, "address of /healthz and /readyz")
	f.StringVar(&o.metricsAddress, "metrics-address", o.metricsAddress, "HTTPS address of /metrics, for clients with the right to get that path; 0 turns it off")
	f.IntVar(&o.maxGangs, "max-gangs-per-namespace", o.maxGangs, "most Gangs, one per opted-in job, in a namespace; 0: no limit")
	f.StringSliceVar(&o.devices, "device-resource", nil, "an extended resource of which each rank has one, such as example.com/gpu or example.com/gpu-*, beside the known ones (docs/annotations.md); may be repeated")
	f.StringVar(&o.logs, "logging-format", o.logs, "format of log lines: json or text")
	f.BoolVar(&o.observeOnly, "observe-only", false, "change nothing but Gangs and events: no pod is evicted or deleted, no node tainted, no Job ended, no agent ordered, and new jobs are only observed")
	o.place.flags(f)
	o.nodes.flags(f)
	o.images.flags(f)
	o.agent.flags(f)
	load := configfile.Flag(f, configKind)
	cmd.PreRunE = func(*cobra.Command, []string) error { return load() } // before required flags are missed
	if err := cmd.MarkFlagRequired("agent-image"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
