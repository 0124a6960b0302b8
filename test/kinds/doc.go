// Package kinds tests other projects' kinds of job with their real controllers, and Volcano's scheduler, on real kubelets.
// `make test-kinds` builds these controllers.
package kinds
