package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
)

// kube-scheduler watches all resources that its feature gates need, and waits for ever for one that the API server does not serve. So gates
// whose resources are missing are switched off before it starts, and it runs on older API servers.

// needs are the resources of resource.k8s.io/v1 that kube-scheduler watches for a feature gate.
var needs = map[featuregate.Feature][]string{
	features.DynamicResourceAllocation: {"resourceclaims", "resourceslices", "deviceclasses"},
	features.DRADeviceTaintRules:       {"devicetaintrules"},
}

// unlocked is the last version in which DynamicResourceAllocation could be switched off.
var unlocked = apiversion.MustParse("1.34")

// missing returns the enabled gates that need an unserved resource, with those resources.
func missing(gates featuregate.FeatureGate, served []metav1.APIResource) map[featuregate.Feature]string {
	names := map[string]bool{}
	for _, r := range served {
		names[r.Name] = true
	}
	lacks := map[featuregate.Feature]string{}
	for gate, resources := range needs {
		if !gates.Enabled(gate) {
			continue
		}
		for _, r := range resources {
			if !names[r] {
				lacks[gate] = r + "." + resourcev1.GroupName
				break
			}
		}
	}
	return lacks
}

// switchOff switches gates off, and all gates that depend on them. It emulates the version in unlocked if a gate is locked in the present
// one.
func switchOff(
	gates featuregate.MutableVersionedFeatureGate,
	effective basecompatibility.MutableEffectiveVersion,
	lacks map[featuregate.Feature]string,
) error {
	if _, all := lacks[features.DynamicResourceAllocation]; all && effective.EmulationVersion().GreaterThan(unlocked) {
		effective.SetEmulationVersion(unlocked)
		if err := gates.SetEmulationVersionAndMinCompatibilityVersion(
			effective.EmulationVersion(),
			effective.MinCompatibilityVersion(),
		); err != nil {
			return fmt.Errorf("emulating version %s, the last in which %s may be off: %w", unlocked, features.DynamicResourceAllocation, err)
		}
	}
	off := map[string]bool{}
	var add func(featuregate.Feature)
	add = func(gate featuregate.Feature) {
		if _, known := off[string(gate)]; known || !gates.Enabled(gate) {
			return
		}
		off[string(gate)] = false
		for dependent, on := range gates.Dependencies() {
			if slices.Contains(on, gate) {
				add(dependent)
			}
		}
	}
	for gate := range lacks {
		add(gate)
	}
	if err := gates.SetFromMap(off); err != nil {
		return fmt.Errorf("switching feature gates off, as the API server does not serve what they need: %w", err)
	}
	return nil
}

// adapt switches off the gates that the API server cannot serve. adapt waits until the API server responds.
func adapt(ctx context.Context, opts *options.Options, gates featuregate.FeatureGate) error {
	logger := klog.FromContext(ctx)
	client, err := discoverer(logger, opts)
	if err != nil {
		return err
	}
	var served []metav1.APIResource
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		list, err := client.ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		switch {
		case apierrors.IsNotFound(err):
			return true, nil
		case err != nil:
			logger.Info("Querying the resources of the API server failed; will be tried again", "reason", err)
			return false, nil
		}
		served = list.APIResources
		return true, nil
	})
	if err != nil {
		return err
	}
	lacks := missing(gates, served)
	if len(lacks) == 0 {
		return nil
	}
	for gate, what := range lacks {
		logger.Info("The API server does not serve a resource that a feature gate needs: switching off the gate and all that depend on it", "gate", gate, "missing", what)
	}
	mutable, ok := gates.(featuregate.MutableVersionedFeatureGate)
	version := opts.ComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	effective, also := version.(basecompatibility.MutableEffectiveVersion)
	if !ok || !also {
		return fmt.Errorf("feature gates are %T, the version is %T: this is not the Kubernetes version that the scheduler was built for", gates, effective)
	}
	return switchOff(mutable, effective, lacks)
}

// discoverer returns a client with kube-scheduler's own connection settings.
func discoverer(logger klog.Logger, opts *options.Options) (*discovery.DiscoveryClient, error) {
	kubeconfig := opts.Deprecated.Kubeconfig
	if opts.ConfigFile != "" {
		config, err := options.LoadConfigFromFile(logger, opts.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("--config %s: %w", opts.ConfigFile, err)
		}
		kubeconfig = config.ClientConnection.Kubeconfig
	}
	config, err := clientcmd.BuildConfigFromFlags(opts.Master, kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server (%s): %w", strings.TrimSpace(opts.Master+" "+kubeconfig), err)
	}
	return discovery.NewDiscoveryClientForConfig(config)
}
