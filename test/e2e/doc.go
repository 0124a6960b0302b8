// Package e2e proves on real kubelets, with a real API server, containerd and PyTorch, what Holdfast promises to people.
// All its tests share one cluster, because starting one costs more than most of them.
package e2e
