// Package e2e tests Holdfast's documented promises on real kubelets, with a real API server, containerd and PyTorch.
// All its tests share one cluster, because starting one costs more than most of them.
package e2e
