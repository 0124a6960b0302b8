// Package translate turns Kubernetes objects into the plain values that the cores decide on, one file
// per kind. It promises to be the only reader of our labels and annotations besides the webhook, and
// that what it cannot read is an error with the field's path and a remedy, never a silent default.
package translate
