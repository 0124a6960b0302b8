// Holdfast-scheduler is kube-scheduler with the Holdfast plugin linked in: nothing of it is forked, every flag and
// every KubeSchedulerConfiguration of kube-scheduler works. It schedules pods that name a profile of its
// configuration; the default scheduler of the cluster goes on beside it. Several replicas elect one that acts.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as kube-scheduler has them
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/replay"
)

// version is set when the binary is built.
var version = "dev"

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	opts, preview := options.NewOptions(), defaultPreviewAddress
	// The original keeps its options to itself; what it says of itself and checks is kept, what it runs is not.
	cmd := app.NewSchedulerCommand()
	cmd.ResetFlags()
	cmd.Use = "holdfast-scheduler"
	cmd.Short = "kube-scheduler that places gangs whole"
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() }
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, opts, preview) }
	flags(cmd, opts, func(fs *pflag.FlagSet) {
		fs.StringVar(&preview, "preview-bind-address", preview, "Where previews of gangs are served by HTTPS; empty: nowhere.")
	})
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
	cmd.AddCommand(&cobra.Command{
		Use:   "replay FILE",
		Short: "make a recorded decision again and say whether the answer is the same",
		Long: "Reads the record of a decision, as GET " + v1alpha1.DumpPath + "?namespace=…&gang=… of the scheduler's preview port gives it, and makes the decision again, " +
			"without any cluster. Ends with code 1 where the answer is another one.",
		Args:              cobra.ExactArgs(1),
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			return again(cmd.OutOrStdout(), file)
		},
	})
	return cmd
}

// again makes a recorded decision again.
func again(out io.Writer, from io.Reader) error {
	record, err := replay.Read(from)
	if err != nil {
		return err
	}
	answer, err := replay.Run(record)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "gang %s, %d members, %d nodes, at %s\n%s\n", record.Name, len(record.Gang.Members), len(record.Nodes), record.At.Format(time.RFC3339), answer)
	for _, s := range answer.Assignments {
		fmt.Fprintf(out, "%d\t%s\t%s\n", s.Slot, s.Member, s.Node)
	}
	if record.Overruled != "" {
		fmt.Fprintf(out, "the scheduler did not follow that, and this cannot be done again from the record, which has no devices of resource claims: %s\n", record.Overruled)
	}
	if d := record.Answer.Differences(answer); len(d) > 0 {
		return fmt.Errorf("the answer is another one than the recorded one:\n%s", strings.Join(d, "\n"))
	}
	return nil
}
