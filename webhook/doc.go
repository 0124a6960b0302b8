// Package webhook opts jobs in at admission. It promises: an object without a key of Holdfast's is never changed;
// every setting acts or is refused with the field's path and a remedy; injecting twice equals injecting once; a dry
// run has no side effect; the user's mounts, QoS class and exit codes, except 137, stay as they are.
//
// MutateJob, CheckJobUpdate and MutatePod are pure: they take an object and facts and return an object, warnings and
// refusals. The handlers decode the request, gather the facts and encode the response.
package webhook

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Outcome is the answer about one object: with Errors it is refused, else Object takes its place.
type Outcome[T any] struct {
	Object   T
	Warnings []string
	Errors   field.ErrorList
}

// Facts are what admission has learnt about a Job beside the object.
type Facts struct {
	// Image is what the training container's image starts; nil: not asked for, or not learnt, for the reason in
	// ImageError.
	Image      *ImageProcess
	ImageError error
	// Devices are extended resources, of which a rank has one, beside those that are known.
	Devices []string
	// Minor is N of the API server's Kubernetes 1.N; 0: not known.
	Minor int
	// Gangs counts those of the Job's namespace, of which there may be MaxGangs; 0: as many as there are.
	Gangs, MaxGangs int
	// Limits are what the Job's namespace allows its pods; LimitsError: why that is not known.
	Limits      Limits
	LimitsError error
	// ObserveOnly: Holdfast acts on nothing now, so that a Job that is opted in is only observed.
	ObserveOnly bool
}

// Config is what the cluster's installation adds to every pod.
type Config struct {
	// AgentImage is the image that holds the agent.
	AgentImage string
	// PullPolicy is that of AgentImage; empty: IfNotPresent.
	PullPolicy corev1.PullPolicy
	// PullSecrets are names of secrets, in the pod's own namespace, that AgentImage is pulled with.
	PullSecrets []string
	// Coordinator is the address, host and port, that agents dial.
	Coordinator string
	// CoordinatorAddresses are its Service's, which are dialed where that name leads nowhere.
	CoordinatorAddresses []string
	// Devices is as in Facts.
	Devices []string
	// CoordinatorCA is the PEM of the certificate authority that agents trust for it.
	CoordinatorCA string
	// Minor is N of the API server's Kubernetes 1.N; 0: not known.
	Minor int
}
