// Package webhook opts jobs in at admission. It promises: what carries none of our keys is never
// touched; every setting acts or is refused with the field's path and a remedy; injecting twice equals
// injecting once; a dry run has no effect; the user's mounts, QoS class and exit codes stay as they are.
//
// MutateJob, CheckJobUpdate and MutatePod are pure: an object in, an object, warnings and refusals out.
// The handlers only decode and encode.
package webhook

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Outcome is the answer about one object: with Errors it is refused, else Object takes its place.
type Outcome[T any] struct {
	Object   T
	Warnings []string
	Errors   field.ErrorList
}

// Config is what the cluster's installation adds to every pod.
type Config struct {
	// AgentImage is the image that holds the agent.
	AgentImage string
	// Coordinator is the address, host and port, that agents dial.
	Coordinator string
	// CoordinatorCA is the PEM of the certificate authority that agents trust for it.
	CoordinatorCA string
}
