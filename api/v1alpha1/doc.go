// Package v1alpha1 defines what users and all parts of Holdfast share at the API server: the Gang object, its condition types and reasons,
// and every label and annotation key under holdfast.dev. Holdfast uses no key or reason that is not listed here.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1alpha1
