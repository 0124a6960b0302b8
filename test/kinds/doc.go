// Package kinds tests Holdfast with jobs of other projects (Volcano Job, JobSet, PyTorchJob), with the real controllers
// of these projects and Volcano's scheduler, on real kubelets. `make test-kinds` builds these controllers.
package kinds
