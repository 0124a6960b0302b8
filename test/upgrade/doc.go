// Package upgrade replaces Holdfast by another version under a running job, on real kubelets: first the control plane
// or first the agents, forward and back. `make test-upgrade` builds the version in hack/upgrade-from and runs the test.
package upgrade
