package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/coordinator/podtoken"
	gangcontroller "holdfast.dev/holdfast/gang/controller"
	"holdfast.dev/holdfast/internal/buildinfo"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/slim"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
	"holdfast.dev/holdfast/webhook"
	"holdfast.dev/holdfast/webhook/certs"
)

const coordinatorPort = 7443

// defaultGangs is the default limit of Gangs in a namespace.
const defaultGangs = 1000

type options struct {
	place              place
	agent              agentOptions
	webhookAddress     string
	coordinatorAddress string
	healthAddress      string
	metricsAddress     string
	logs               string
	maxGangs           int
	devices            []string
	observeOnly        bool
	nodes              nodeOptions
	images             imageOptions
}

func defaults() options {
	return options{
		place:              placeDefaults(),
		webhookAddress:     ":9443",
		coordinatorAddress: ":" + strconv.Itoa(coordinatorPort),
		healthAddress:      ":8081",
		metricsAddress:     ":8443",
		maxGangs:           defaultGangs,
		logs:               logJSON,
		agent:              agentDefaults(),
		nodes:              nodeDefaults(),
		images:             imageDefaults(),
	}
}

// settled returns the options with the consequences of --observe-only applied.
func (o options) settled() options {
	if o.observeOnly && o.nodes.mode == nodesAct {
		o.nodes.mode = nodesDryRun
	}
	return o
}

// prepare sets up the configuration of all clients.
func prepare(cfg *rest.Config, o options) {
	elasticcontroller.Tune(cfg)
	if o.observeOnly {
		observing(cfg)
	}
}

// run runs the process: it returns when ctx ends or a part fails.
func run(ctx context.Context, o options) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	o = o.settled()
	prepare(cfg, o)
	host, port, err := splitAddress(o.webhookAddress)
	if err != nil {
		return err
	}
	if _, err := o.nodes.config(); err != nil {
		return err
	}
	if err := o.place.check(); err != nil {
		return err
	}
	if err := webhook.CheckDevices(o.devices); err != nil {
		return fmt.Errorf("--device-resource: %w", err)
	}
	var rotator *certs.Rotator
	secure := func(c *tls.Config) { rotator.Serve(c) }
	mgr, err := ctrl.NewManager(cfg, managerOptions(o, secure, ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: host, Port: port,
		TLSOpts: []func(*tls.Config){secure},
	})))
	if err != nil {
		return fmt.Errorf("starting the manager: %w", err)
	}
	rotator = certs.New(certs.Options{
		Client:  mgr.GetClient(),
		Secret:  o.place.key(secretName),
		Webhook: o.place.name(webhookConfig),
		Names:   []string{o.place.host(webhookService), o.place.host(coordinatorService), o.place.host(metricsService)},
	})
	if err := metrics.Registry.Register(buildinfo.Collector("holdfast-controller", version)); err != nil {
		return fmt.Errorf("registering the metric of the version: %w", err)
	}
	if err := rotator.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up certificates: %w", err)
	}
	if err := addWebhooks(mgr, rotator, o); err != nil {
		return err
	}
	if err := addControllers(mgr, rotator, o); err != nil {
		return err
	}
	if err := addChecks(mgr, rotator); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func splitAddress(address string) (string, int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("reading --webhook-address: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return "", 0, fmt.Errorf("reading the port of --webhook-address %q: %w", address, err)
	}
	return host, port, nil
}

// managerOptions restricts the caches to what is needed: pods of gangs, one Secret, one webhook configuration, and of all Jobs the fields
// that are read.
func managerOptions(o options, secure func(*tls.Config), server ctrlwebhook.Server) manager.Options {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two of the schemes conflict
		}
	}
	ofGangs, err := labels.NewRequirement(v1alpha1.LabelGang, selection.Exists, nil)
	if err != nil {
		panic(err) // the key is always valid
	}
	grace := 10 * time.Second
	return manager.Options{
		Scheme:                        scheme,
		Metrics:                       metricsOptions(o.metricsAddress, secure),
		HealthProbeBindAddress:        o.healthAddress,
		WebhookServer:                 server,
		LeaderElection:                true,
		LeaderElectionID:              o.place.name(leaderLease),
		LeaderElectionNamespace:       o.place.namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &grace,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:  {Label: labels.NewSelector().Add(*ofGangs)},
				&batchv1.Job{}: {Transform: slim.Job},
				&corev1.Node{}: {Transform: nodecontroller.SlimNode},
				&coordinationv1.Lease{}: {Transform: nodecontroller.SlimLease, Namespaces: map[string]cache.Config{
					corev1.NamespaceNodeLease: {}}},
				&corev1.Secret{}: {Namespaces: map[string]cache.Config{
					o.place.namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", o.place.name(secretName))}}},
				&corev1.Service{}: {Namespaces: map[string]cache.Config{
					o.place.namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", o.place.name(coordinatorService))}}},
				&admissionregistrationv1.MutatingWebhookConfiguration{}: {Field: fields.OneTermEqualSelector("metadata.name", o.place.name(webhookConfig))},
			},
		},
	}
}

// metricsOptions serves metrics to callers that may get the path /metrics: they show jobs and nodes of all namespaces.
func metricsOptions(address string, secure func(*tls.Config)) metricsserver.Options {
	return metricsserver.Options{
		BindAddress:    address,
		SecureServing:  true,
		TLSOpts:        []func(*tls.Config){secure},
		FilterProvider: filters.WithAuthenticationAndAuthorization,
	}
}

// addWebhooks serves admission on every replica.
func addWebhooks(mgr manager.Manager, rotator *certs.Rotator, o options) error {
	images, err := o.images.images(mgr.GetConfig(), mgr.GetLogger().WithName("images"))
	if err != nil {
		return err
	}
	version, err := newServerVersion(mgr.GetConfig(), clock.RealClock{})
	if err != nil {
		return err
	}
	if err := o.agent.check(); err != nil {
		return err
	}
	config := func(ctx context.Context, namespace string) (webhook.Config, error) {
		authority, err := rotator.Authority()
		if err != nil {
			return webhook.Config{}, err
		}
		addresses, err := coordinatorAddresses(ctx, mgr.GetClient(), o.place.key(coordinatorService))
		return webhook.Config{
			AgentImage:           o.agent.image,
			PullPolicy:           corev1.PullPolicy(o.agent.pullPolicy),
			PullSecrets:          o.agent.secretsFor(namespace),
			Coordinator:          net.JoinHostPort(o.place.host(coordinatorService), strconv.Itoa(coordinatorPort)),
			CoordinatorAddresses: addresses,
			CoordinatorCA:        authority,
			Devices:              o.devices,
			Minor:                version.minor(ctx),
		}, err
	}
	mgr.GetWebhookServer().Register(webhook.PathPods, &admission.Webhook{Handler: webhook.Pods(config)})
	mgr.GetWebhookServer().
		Register(webhook.PathJobs, &admission.Webhook{Handler: webhook.Jobs(webhook.Cluster{
			Images:      images,
			Minor:       version.minor,
			Gangs:       gangsIn(mgr.GetClient()),
			MaxGangs:    o.maxGangs,
			Limits:      limitsOf(mgr.GetAPIReader()),
			ObserveOnly: o.observeOnly,
			Devices:     o.devices,
		})})
	if !o.observeOnly {
		mgr.GetWebhookServer().Register(webhook.PathLeaving, &admission.Webhook{Handler: webhook.Leaving(mgr.GetClient(), mgr.GetAPIReader())})
	}
	return nil
}

// coordinatorAddresses are the cluster IPs of the coordinator's Service: pods on their node's network may not resolve the cluster's names.
// A headless Service has none.
func coordinatorAddresses(ctx context.Context, cached client.Reader, key types.NamespacedName) ([]string, error) {
	service := &corev1.Service{}
	err := cached.Get(ctx, key, service)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return slices.DeleteFunc(slices.Clone(service.Spec.ClusterIPs), func(ip string) bool { return net.ParseIP(ip) == nil }), nil
}

// gangsIn lists a namespace's Gangs in the cache.
func gangsIn(cached client.Reader) func(context.Context, string) ([]v1alpha1.Gang, error) {
	return func(ctx context.Context, namespace string) ([]v1alpha1.Gang, error) {
		gangs := &v1alpha1.GangList{}
		err := cached.List(ctx, gangs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
		return gangs.Items, err
	}
}

// limitsTimeout bounds the read of a namespace's limits; the API server waits 5 s for the webhook.
const limitsTimeout = time.Second

// limitsOf reads a namespace's limits for pods from the API server: a cache would receive an update for each pod that a quota counts.
func limitsOf(live client.Reader) func(context.Context, string) (webhook.Limits, error) {
	return func(ctx context.Context, namespace string) (l webhook.Limits, err error) {
		ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
		defer cancel()
		ranges, quotas := &corev1.LimitRangeList{}, &corev1.ResourceQuotaList{}
		for _, list := range []client.ObjectList{ranges, quotas} {
			if err := live.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return l, fmt.Errorf("reading them: %w", err)
			}
		}
		return webhook.Limits{Ranges: ranges.Items, Quotas: quotas.Items}, nil
	}
}

// addControllers adds the controllers, which run on the leader, and the coordinator, which listens on every replica.
func addControllers(mgr manager.Manager, rotator *certs.Rotator, o options) error {
	reader, err := jobs.ForManager(mgr, kinds.Served())
	if err != nil {
		return fmt.Errorf("setting up the reader of jobs: %w", err)
	}
	gangs := gangcontroller.New(gangcontroller.Options{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Jobs:     reader,
		ByGang:   elasticcontroller.PodsByGang,
		MaxGangs: o.maxGangs,
		Recorder: mgr.GetEventRecorder("holdfast-gang"),
		Now:      time.Now,
	})
	if err := gangs.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the gang controller: %w", err)
	}
	store := elasticcontroller.New(elasticcontroller.Options{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Jobs:     reader,
		Recorder: mgr.GetEventRecorder("holdfast-elastic"),
		Log:      mgr.GetLogger().WithName("elastic"),
		Metrics:  metrics.Registry,
	})
	elected := mgr.Elected()
	if o.observeOnly {
		elected = make(chan struct{}) // agents receive no orders: running ranks train on, as without a leader
	}
	secure := &tls.Config{NextProtos: []string{"h2"}}
	rotator.Serve(secure)
	settled, err := addTraces(mgr)
	if err != nil {
		return err
	}
	server, err := coordinator.New(coordinator.Options{
		Listen: o.coordinatorAddress, TLS: secure, Authorities: rotator.Authority, Callers: podtoken.New(mgr.GetClient(), mgr.GetAPIReader()),
		Store: store, Elected: elected, Log: mgr.GetLogger().WithName("coordinator"), Metrics: metrics.Registry,
		Settled: settled})
	if err != nil {
		return fmt.Errorf("setting up the coordinator: %w", err)
	}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("adding the coordinator: %w", err)
	}
	if o.observeOnly {
		err = elasticcontroller.IndexPods(mgr) // other parts need this index
	} else {
		mgr.GetWebhookServer().Register(webhook.PathEnded, &admission.Webhook{Handler: webhook.Ended(store.ReleaseEnded)})
		err = store.SetupWithManager(mgr, server)
	}
	if err != nil {
		return fmt.Errorf("setting up the elastic controller: %w", err)
	}
	nodes, err := addNodes(mgr, server, o.nodes)
	if nodes != nil {
		store.Suspect, store.Unsuspect, store.Pass = nodes.Suspect, nodes.Forgive, nodes.Pass
	}
	return err
}

// addChecks makes the process ready once the API server can reach its webhook and trusts it.
func addChecks(mgr manager.Manager, rotator *certs.Rotator) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("adding the health check: %w", err)
	}
	started := mgr.GetWebhookServer().StartedChecker()
	if err := mgr.AddReadyzCheck("webhook", func(req *http.Request) error {
		if err := rotator.Ready(req); err != nil {
			return err
		}
		return started(req)
	}); err != nil {
		return fmt.Errorf("adding the webhook's check: %w", err)
	}
	return nil
}
