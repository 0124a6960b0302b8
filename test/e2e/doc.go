// Package e2e tests what Holdfast's documentation promises on real kubelets, with a real API server, containerd and
// PyTorch. All tests share one cluster, because starting a cluster takes longer than most of the tests.
package e2e
