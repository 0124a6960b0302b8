package main

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	// The controller's own image contains no certificate authorities.
	_ "golang.org/x/crypto/x509roots/fallback"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"holdfast.dev/holdfast/webhook"
	"holdfast.dev/holdfast/webhook/image"
)

type imageOptions struct {
	read, pullSecrets bool
	authorities       string
	insecure          []string
}

func imageDefaults() imageOptions { return imageOptions{read: true} }

func (o *imageOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.read, "read-images", o.read, "read ENTRYPOINT and CMD from the registry for training containers that name no command; false refuses them")
	f.BoolVar(&o.pullSecrets, "image-pull-secrets", o.pullSecrets, "read images with the pull secrets of the job's pods; needs the right to get secrets and serviceaccounts in their namespaces")
	f.StringVar(&o.authorities, "registry-ca-file", o.authorities, "PEM file with further authorities that sign registries' certificates")
	f.StringSliceVar(&o.insecure, "insecure-registries", o.insecure, "registries, HOST or HOST:PORT as in an image's name, that may use plain HTTP and be on the controller's own machine; may be repeated")
}

// images returns a reader of images' entry points; nil if it is off.
func (o *imageOptions) images(cluster *rest.Config, log logr.Logger) (webhook.Images, error) {
	if !o.read {
		if o.pullSecrets || o.authorities != "" || len(o.insecure) > 0 {
			return nil, fmt.Errorf("--image-pull-secrets, --registry-ca-file and --insecure-registries do nothing with --read-images=false: remove them")
		}
		return nil, nil
	}
	if err := image.CheckRegistries(o.insecure); err != nil {
		return nil, fmt.Errorf("--insecure-registries: %w", err)
	}
	transport, err := image.NewTransport(o.authorities, o.insecure)
	if err != nil {
		return nil, fmt.Errorf("--registry-ca-file: %w", err)
	}
	options := image.Options{Transport: transport, Insecure: o.insecure, Log: log}
	if o.pullSecrets {
		if options.PullSecrets, err = kubernetes.NewForConfig(cluster); err != nil {
			return nil, err
		}
	}
	return image.New(options).Process, nil
}
