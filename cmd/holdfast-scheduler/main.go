// Holdfast-scheduler is kube-scheduler with the Holdfast plugin linked in: nothing of it is forked, every flag and
// every KubeSchedulerConfiguration of kube-scheduler works. It schedules pods that name a profile of its
// configuration; the default scheduler of the cluster goes on beside it.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as kube-scheduler has them
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"holdfast.dev/holdfast/plugin"
)

// version is set when the binary is built.
var version = "dev"

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	cmd := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.New))
	cmd.Use = "holdfast-scheduler"
	cmd.Short = "kube-scheduler that places gangs whole"
	cmd.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "print the versions of Holdfast and of the kube-scheduler that is in here",
		Args:  cobra.NoArgs,
		// The parent's hook reads feature gates that this does not need.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "holdfast-scheduler %s (kube-scheduler %s)\n", version, kubeversion.Get().GitVersion)
		},
	})
	return cmd
}
