// Package upgrade has the test that puts another version of Holdfast under a running job, on real kubelets: the control plane first and the
// agents first, forward and back. make test-upgrade builds the version in hack/upgrade-from and runs it.
package upgrade
