// Package webhook changes a job when it is created, so that Holdfast keeps the job alive. A job takes part only if its
// user set holdfast.dev/enabled.
//
//   - An object without an annotation or label of Holdfast is never changed.
//   - Each annotation has an effect, or the job is refused with the path of the annotation and a remedy.
//   - A second admission of the same object changes nothing.
//   - A dry run has no side effect.
//   - The user's mounts and QoS class stay unchanged. Each exit code of the user's command stays unchanged, except that
//     137 becomes 1.
//
// The admission of an object (mutate, checkUpdate) and MutatePod are pure: they take an object and facts, and return an
// object, warnings and refusals. The handlers decode the request, gather the facts and encode the response. Package
// internal/kinds reads objects of every kind of job. Admission writes only the metadata of an object's pod templates,
// and the fields that Kind.Admit of the object's kind writes.
package webhook

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Outcome is the result for one object: with Errors it is refused, otherwise Object replaces it.
type Outcome[T any] struct {
	Object   T
	Warnings []string
	Errors   field.ErrorList
}

// Image is what the image of a role's training container starts; nil: not needed, or unknown for the reason in Err.
type Image struct {
	Process *ImageProcess
	Err     error
}

// Facts are what admission knows about an object beside it.
type Facts struct {
	// Images are by role.
	Images map[string]Image
	// Devices are extended resources, one per rank, beside the known ones.
	Devices []string
	// Minor is N of the API server's Kubernetes 1.N; 0: unknown.
	Minor int
	// Gangs counts the Gangs in the object's namespace, MaxGangs is its limit; 0: no limit.
	Gangs, MaxGangs int
	// Holder is the object of another kind that has the Gang of the object's name; nil: none has.
	Holder *v1alpha1.JobReference
	// Limits are what the object's namespace allows its pods; LimitsError: why they are unknown.
	Limits      Limits
	LimitsError error
	// ObserveOnly: the controller acts on no job, so that a batch Job that is opted in is only observed.
	ObserveOnly bool
}

// Config is what the cluster's installation adds to every pod.
type Config struct {
	// AgentImage is the image that holds the agent.
	AgentImage string
	// PullPolicy is the pull policy of AgentImage; empty: IfNotPresent.
	PullPolicy corev1.PullPolicy
	// PullSecrets are names of secrets, in the pod's own namespace, that AgentImage is pulled with.
	PullSecrets []string
	// Coordinator is the address, host and port, that agents dial.
	Coordinator string
	// CoordinatorAddresses are the addresses of its Service, which agents dial if the name does not resolve to it.
	CoordinatorAddresses []string
	// Devices is the same as Facts.Devices.
	Devices []string
	// CoordinatorCA is the PEM of the certificate authority that agents trust for it.
	CoordinatorCA string
	// Minor is N of the API server's Kubernetes 1.N; 0: unknown.
	Minor int
}
