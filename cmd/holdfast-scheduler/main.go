// Command holdfast-scheduler is kube-scheduler with Holdfast's plugin. The code of kube-scheduler is unchanged, so all its flags and every
// KubeSchedulerConfiguration work. The command schedules pods that name one of its profiles. The cluster's default scheduler keeps
// running. Of several replicas one leader schedules.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as kube-scheduler has them
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// version is set at build time.
var version = "dev"

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	opts, preview := options.NewOptions(), defaultPreviewAddress
	// The original command hides its options: its help and flags are kept, its RunE is replaced.
	cmd := app.NewSchedulerCommand()
	cmd.ResetFlags()
	cmd.Use = "holdfast-scheduler"
	cmd.Short = "kube-scheduler that places gangs whole"
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() }
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, opts, preview) }
	flags(cmd, opts, func(fs *pflag.FlagSet) {
		fs.StringVar(&preview, "preview-bind-address", preview, "HTTPS address of previews of gangs; empty: off.")
	})
	cmd.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "print the versions of Holdfast and of its kube-scheduler",
		Args:  cobra.NoArgs,
		// The parent's hook reads feature gates, which this command does not need.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "holdfast-scheduler %s (kube-scheduler %s)\n", version, kubeversion.Get().GitVersion)
		},
	})
	return cmd
}
