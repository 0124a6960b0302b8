package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // CronJob time zones, as in the stock binaries

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl auth plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
)

// components are the stock programs that this binary can be, selected by argv[0], as in busybox.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          stock(apiserver.NewAPIServerCommand),
	"kube-controller-manager": stock(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          stock(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 stock(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              stock(proxy.NewProxyCommand),
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
}

func stock(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}

func runKubectl() int {
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		cmdutil.CheckErr(err)
	}
	return 0
}

// runKwok runs kwok for simulated nodes.
func runKwok() int {
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, logger := kwoklog.InitFlags(ctx, flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		logger.Error("reading the configuration", "err", err)
		return 2
	}
	command := kwok.NewCommand(ctx)
	command.Version = "" // otherwise its flag conflicts with the one that Kubernetes declares for all programs
	command.PersistentFlags().AddFlagSet(flags)
	if err := command.ExecuteContext(ctx); err != nil {
		logger.Error("ended", "err", err)
		return 1
	}
	return 0
}

// runEtcd serves a single-member etcd on loopback: etcd DATADIR CLIENTURL PEERURL.
// It does not fsync: a dev cluster's data dies with the cluster.
func runEtcd() int {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "etcd: want DATADIR CLIENTURL PEERURL")
		return 2
	}
	cfg := embed.NewConfig()
	cfg.Name = "dev"
	cfg.Dir = os.Args[1]
	client, err1 := url.Parse(os.Args[2])
	peer, err2 := url.Parse(os.Args[3])
	if err1 != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, "etcd: reading urls:", err1, err2)
		return 2
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "warn"
	cfg.QuotaBackendBytes = 4 << 30
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", "30m"
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd: starting:", err)
		return 1
	}
	defer etcd.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(60 * time.Second):
		fmt.Fprintln(os.Stderr, "etcd: not ready after 60 s")
		return 1
	case <-stop:
		return 0
	}
	select {
	case <-stop:
		return 0
	case err := <-etcd.Err():
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
}
