// Package elastic tests, on three real kubelets, that a job with a minimum goes on with fewer pods when a node dies and no
// other one is there, that it takes the pod in again without a step done twice once the node returns, and that it ends
// Complete with a pod missing.
package elastic
