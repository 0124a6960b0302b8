package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// agentOptions are the image that is injected into each pod, and how nodes pull it.
type agentOptions struct {
	image       string
	pullPolicy  string
	pullSecrets []string
}

func agentDefaults() agentOptions {
	return agentOptions{pullPolicy: string(corev1.PullIfNotPresent)}
}

func (o *agentOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.image, "agent-image", "", "image of holdfast-agent to inject into pods (required)")
	f.StringVar(&o.pullPolicy, "agent-pull-policy", o.pullPolicy, "when nodes pull that image: IfNotPresent, Always or Never")
	f.StringSliceVar(&o.pullSecrets, "agent-pull-secrets", nil, "secrets for pulling that image, added to pods that do not name them; NAME in the pod's namespace, NAMESPACE/NAME only for pods of that namespace; may be repeated")
}

func (o *agentOptions) check() error {
	switch corev1.PullPolicy(o.pullPolicy) {
	case corev1.PullIfNotPresent, corev1.PullAlways, corev1.PullNever:
	default:
		return fmt.Errorf("--agent-pull-policy: %q must be IfNotPresent, Always or Never", o.pullPolicy)
	}
	for _, secret := range o.pullSecrets {
		namespace, name, scoped := strings.Cut(secret, "/")
		if !scoped {
			namespace, name = "any", secret
		}
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("--agent-pull-secrets: %q is not a secret: write NAME, or NAMESPACE/NAME", secret)
		}
	}
	return nil
}

// secretsFor returns the names of the secrets for pods of a namespace.
func (o *agentOptions) secretsFor(namespace string) (names []string) {
	for _, secret := range o.pullSecrets {
		of, name, scoped := strings.Cut(secret, "/")
		switch {
		case !scoped:
			names = append(names, secret)
		case of == namespace:
			names = append(names, name)
		}
	}
	return names
}
