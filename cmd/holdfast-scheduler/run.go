package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/buildinfo"
	"holdfast.dev/holdfast/plugin"
	"holdfast.dev/holdfast/plugin/ask"
	"holdfast.dev/holdfast/plugin/serve"
)

const (
	defaultPreviewAddress = ":10260"
	shutdown              = 5 * time.Second
	// farewell is how long events are still written once the process is ending.
	farewell = 15 * time.Second
)

// flags adds kube-scheduler's flags and Holdfast's to the command, as kube-scheduler does.
func flags(cmd *cobra.Command, opts *options.Options, ours func(*pflag.FlagSet)) {
	sets := opts.Flags
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	ours(sets.FlagSet("holdfast"))
	for _, fs := range sets.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	cols, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *sets, cols)
}

// run runs what kube-scheduler's command runs, drives the plugin's instances and serves previews.
func run(cmd *cobra.Command, opts *options.Options, preview string) error {
	verflag.PrintAndExitIfRequested()
	gates := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
		return err
	}
	if gates.Enabled(features.GenericWorkload) {
		return fmt.Errorf("feature gate %s is on: kube-scheduler would schedule the pods of a PodGroup one after another, but this scheduler plans them together; turn the gate off here, PodGroups are read without it", features.GenericWorkload)
	}
	cliflag.PrintFlags(cmd.Flags())
	if opts.InformerName == nil {
		name, err := cache.NewInformerName("kube-scheduler")
		if err != nil {
			return err
		}
		opts.InformerName = name
	}
	signals := server.SetupSignalContext()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if opts.WriteConfigTo == "" {
		if err := adapt(signals, opts, gates); err != nil {
			return err
		}
	}
	station := plugin.NewInstances()
	config, sched, err := app.Setup(ctx, opts, app.WithPlugin(plugin.Name, station.New), app.WithPlugin(plugin.GateName, station.NewGate))
	if err != nil {
		return err
	}
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	for _, c := range append(station.Metrics(), buildinfo.Collector("holdfast-scheduler", version)) {
		if err := legacyregistry.Registerer().Register(c); err != nil {
			return err
		}
	}
	go func() {
		<-signals.Done()
		endWell(station)
		cancel()
	}()
	station.Start(ctx, sched)
	if preview != "" {
		if err := servePreviews(ctx, preview, config, station); err != nil {
			return err
		}
	}
	return app.Run(ctx, config, sched)
}

// endWell writes the events that were held back; kube-scheduler's own writers end with its context.
func endWell(station *plugin.Instances) {
	if !station.Leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	station.Flush(ctx)
}

// servePreviews serves previews with the certificate of kube-scheduler's port.
func servePreviews(ctx context.Context, address string, config *schedulerconfig.CompletedConfig, station *plugin.Instances) error {
	if config.SecureServing == nil {
		return errors.New("--preview-bind-address needs kube-scheduler's own HTTPS port: set --secure-port, or give it an empty address")
	}
	authn, authz, err := ask.Delegate(config.Client)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--preview-bind-address: %w", err)
	}
	own := *config.SecureServing
	own.Listener, own.ClientCA = listener, nil
	handler := &ask.Handler{Scheduler: station, Fault: fault, Authenticator: authn, Authorizer: authz}
	if _, _, err := own.Serve(handler, shutdown, ctx.Done()); err != nil {
		return fmt.Errorf("serving previews: %w", err)
	}
	return nil
}

// fault converts an error of the plugin's instances for the caller.
func fault(err error) (ask.Fault, bool) {
	var invalid *serve.InvalidError
	switch {
	case errors.Is(err, serve.ErrNotLeading):
		return ask.Fault{Code: http.StatusServiceUnavailable, Reason: v1alpha1.ReasonNotLeading}, true
	case errors.As(err, &invalid):
		return ask.Fault{Code: http.StatusUnprocessableEntity, Reason: "Invalid"}, true
	case errors.Is(err, context.DeadlineExceeded):
		return ask.Fault{Code: http.StatusGatewayTimeout, Reason: "Timeout"}, true
	default:
		return ask.Fault{}, false
	}
}
