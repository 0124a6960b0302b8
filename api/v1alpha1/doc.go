// Package v1alpha1 defines what Holdfast reads and writes at the API server: the object Gang, its condition types and
// reasons, and every key of a label or annotation under holdfast.dev. Holdfast uses no other key and no other reason.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1alpha1
