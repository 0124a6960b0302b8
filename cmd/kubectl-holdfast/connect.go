package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// timeout bounds each request to the API server.
const timeout = 30 * time.Second

// scheme has the types that the commands read and show.
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		admissionregistrationv1.AddToScheme(s),
		appsv1.AddToScheme(s),
		authenticationv1.AddToScheme(s),
		discoveryv1.AddToScheme(s),
		networkingv1.AddToScheme(s),
		corev1.AddToScheme(s),
		batchv1.AddToScheme(s),
		coordinationv1.AddToScheme(s),
		v1alpha1.AddToScheme(s),
	)
}

// connect returns a client and the namespace that the flags name. Warnings of the API server go to warn.
func connect(flags *genericclioptions.ConfigFlags, warn rest.WarningHandlerWithContext) (client.Client, *rest.Config, string, error) {
	if err := configured(flags); err != nil {
		return nil, nil, "", err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	cfg, err := flags.ToRESTConfig()
	if err != nil {
		return nil, nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	cfg.WarningHandlerWithContext = warn
	s, err := scheme()
	if err != nil {
		return nil, nil, "", err
	}
	mapper, err := flags.ToRESTMapper() // kubectl's, which knows short names
	if err != nil {
		return nil, nil, "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	c, err := client.New(cfg, client.Options{Scheme: s, Mapper: mapper})
	if err != nil {
		return nil, nil, "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, cfg, namespace, nil
}

// configured refuses to guess the cluster's address: without a configuration it would be one of this machine, which serves no cluster.
func configured(flags *genericclioptions.ConfigFlags) error {
	raw, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	_, inPod := os.LookupEnv("KUBERNETES_SERVICE_HOST")
	if len(raw.Clusters) > 0 || inPod || flags.APIServer != nil && *flags.APIServer != "" {
		return nil
	}
	return errors.New("there is no kubeconfig that names a cluster: set KUBECONFIG to its file, or give --kubeconfig FILE")
}

// unreadable reports whether an error means that this user may not read an object, or that this cluster does not have it, rather than that
// the cluster has a fault.
func unreadable(err error) bool {
	return apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err)
}
