package main

import (
	"cmp"
	"os"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// ownNamespace is the namespace of Holdfast's own objects; an installation elsewhere is named by an environment variable.
func ownNamespace() string { return cmp.Or(os.Getenv("HOLDFAST_NAMESPACE"), v1alpha1.Namespace) }

// ownName returns an object's name with the prefix of an installation that has one.
func ownName(base string) string { return os.Getenv("HOLDFAST_NAME_PREFIX") + base }

// ownService returns scheme, name and port of a Service for the proxy subresource.
func ownService(base string) string {
	parts := strings.Split(base, ":")
	parts[1] = ownName(parts[1])
	return strings.Join(parts, ":")
}
