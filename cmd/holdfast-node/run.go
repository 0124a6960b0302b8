package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/kmsg"
	"holdfast.dev/holdfast/nodehealth/metrics"
	"holdfast.dev/holdfast/nodehealth/node"
	"holdfast.dev/holdfast/nodehealth/nvml"
)

type options struct {
	node, kmsg, bootID string
	libraries          []string
	deadline, start    time.Duration
	kmsgFD, user       int
	metrics            string
	probe, logs        string
}

// assessEvery is the interval at which the verdict is checked for changes by time alone.
const assessEvery = time.Second

func run(ctx context.Context, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	log := logger(os.Stdout, o.logs)
	klog.SetSlogLogger(log)                // what client-go logs
	if o.kmsgFD < 0 && os.Geteuid() == 0 { // with --kmsg-fd this was done already, and the user may be root on purpose
		return openAndShed(o, log)
	}
	boot, err := os.ReadFile(o.bootID)
	if err != nil {
		return fmt.Errorf("reading the boot id: %w", err)
	}
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return fmt.Errorf("setting up the client of the API server: %w", err)
	}
	figures := metrics.New(version)
	if o.metrics != metricsOff {
		go figures.Serve(ctx, o.metrics, log)
	}
	signals := make(chan nodehealth.Signal, 64)
	emit := func(s nodehealth.Signal) {
		figures.Signal(s)
		select {
		case signals <- s:
		case <-ctx.Done():
		}
	}
	asked := &wishes{}
	writer := node.New(
		node.Options{Client: client, Server: strings.TrimSuffix(cfg.Host, "/"), Node: o.node, Log: log, Answered: figures.Answered,
			Expected: func(gpus int, by string, final bool) {
				emit(nodehealth.Signal{At: time.Now(), Source: nodehealth.API, Kind: nodehealth.Expected, Code: gpus, Text: by, Final: final})
			},
			Released: func(by string) { asked.released.Store(&by) }},
	)
	before, err := writer.Load(ctx)
	if err != nil {
		return nil // ended by a signal before the API server responded
	}
	id := strings.TrimSpace(string(boot))
	log.Info("holdfast-node begins", "version", version, "node", o.node, "boot", id, "before", before.Action.String(), "cause", before.Cause, "same boot", before.Boot == id)
	listen(ctx, o, log, emit, figures, asked)
	go writer.Run(ctx)
	go writer.Follow(ctx)
	state := nodehealth.Restore(id, before)
	publish := func(v nodehealth.Verdict) {
		asked.resting.Store(v.Resettable)
		figures.Verdict(v)
		writer.Publish(v)
	}
	judge(ctx, state, signals, publish, log)
	return nil
}

// wishes are what the Node and the verdict request from nvml.Watch.
type wishes struct {
	released atomic.Pointer[string]
	resting  atomic.Bool
}

func (w *wishes) releasedBy() string {
	if by := w.released.Load(); by != nil {
		return *by
	}
	return ""
}

// listen starts the sources of signals. If one of kernel log and NVML is missing, the other is used alone.
func listen(ctx context.Context, o options, log *slog.Logger, emit func(nodehealth.Signal), figures *metrics.Metrics, asked *wishes) {
	if kernel, err := openLog(o, log); err != nil {
		log.Error("there is no kernel log to read", "error", err)
	} else {
		kernel.Line = figures.Line
		go func() {
			if err := kernel.Follow(ctx, emit); err != nil {
				log.Error("the kernel log is no longer read", "error", err)
			}
		}()
	}
	watch := nvml.Watch{
		Command: []string{o.probe, "--nvml=" + strings.Join(o.libraries, ",")},
		Start:   o.start, Deadline: o.deadline, Emit: emit, Log: log, Round: figures.Round,
		Released: asked.releasedBy, Resting: asked.resting.Load,
	}
	go watch.Run(ctx)
}

func openLog(o options, log *slog.Logger) (*kmsg.Log, error) {
	if o.kmsgFD >= 0 {
		return kmsg.FromFD(o.kmsgFD, log), nil
	}
	return kmsg.Open(o.kmsg, log)
}

// judge folds signals and publishes the verdict whenever it changes, until ctx ends. An earlier daemon's verdict remains until NVML first
// responds, or until the new one is worse: the kernel log that is read again names devices by addresses, which only NVML can map to GPUs.
func judge(
	ctx context.Context,
	state nodehealth.State,
	signals <-chan nodehealth.Signal,
	publish func(nodehealth.Verdict),
	log *slog.Logger,
) {
	tick := time.NewTicker(assessEvery)
	defer tick.Stop()
	var last nodehealth.Verdict
	responded, published := false, false
	standing := nodehealth.Assess(state, time.Now()).Action
	for {
		sig := nodehealth.Signal{}
		select {
		case <-ctx.Done():
			return
		case sig = <-signals:
		case sig.At = <-tick.C:
		}
		if sig.Kind != nodehealth.Read && sig.Kind != nodehealth.Tick && sig.Kind != nodehealth.Hang && sig.Kind != nodehealth.Blind {
			log.Info("signal", "source", sig.Source, "kind", sig.Kind, "code", sig.Code, "device", sig.Device, "at", sig.At, "text", sig.Text)
		}
		now := time.Now()
		state = nodehealth.Fold(state, sig, now)
		responded = responded || sig.Kind == nodehealth.Read || sig.Kind == nodehealth.Blind || sig.Kind == nodehealth.Hang ||
			sig.Kind == nodehealth.Released
		v := nodehealth.Assess(state, now)
		if !responded && v.Action <= standing || published && reflect.DeepEqual(v, last) {
			continue
		}
		if !published || v.Action != last.Action || v.Cause != last.Cause || v.Known != last.Known {
			log.Info("verdict", "action", v.Action.String(), "cause", v.Cause, "message", v.Message, "devices", v.Devices, "known", v.Known)
		}
		last, published = v, true
		publish(v)
	}
}
