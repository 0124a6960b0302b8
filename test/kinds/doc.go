// Package kinds tests jobs of other projects' kinds, and under their scheduler, with their real controllers on real kubelets.
// `make test-kinds` builds these controllers.
package kinds
