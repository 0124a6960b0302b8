package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Names in the manifests, without the prefix of an installation.
const (
	secretName         = "holdfast-certs"
	webhookConfig      = "holdfast"
	webhookService     = "holdfast-webhook"
	coordinatorService = "holdfast-coordinator"
	metricsService     = "holdfast-metrics"
	leaderLease        = "holdfast-controller"
)

// place is where the controller's own objects are, and what precedes their names.
type place struct {
	namespace, prefix string
}

func placeDefaults() place { return place{namespace: v1alpha1.Namespace} }

func (p *place) flags(f *pflag.FlagSet) {
	f.StringVar(&p.namespace, "namespace", p.namespace, "namespace of Holdfast's own objects")
	f.StringVar(&p.prefix, "name-prefix", "", "what the names of Holdfast's own objects begin with, such as acme- for acme-holdfast-certs")
}

func (p place) check() error {
	if len(validation.IsDNS1123Label(p.namespace)) > 0 {
		return fmt.Errorf("--namespace: %q is not the name of a namespace", p.namespace)
	}
	if p.prefix != "" && (!strings.HasSuffix(p.prefix, "-") || len(validation.IsDNS1123Label(p.name(coordinatorService))) > 0) {
		return fmt.Errorf("--name-prefix: %q must have small letters, digits and hyphens, and end with a hyphen, such as acme-", p.prefix)
	}
	return nil
}

func (p place) name(base string) string { return p.prefix + base }

func (p place) key(base string) types.NamespacedName {
	return types.NamespacedName{Namespace: p.namespace, Name: p.name(base)}
}

// host is the name by which pods reach a Service.
func (p place) host(service string) string { return p.name(service) + "." + p.namespace + ".svc" }
