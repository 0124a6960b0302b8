// Package upgrade has the test that puts another version of Holdfast under a running job, on real kubelets: the
// control plane first and the agents first, forward and back. make test-upgrade builds the version that
// hack/upgrade-from names and runs it.
package upgrade
