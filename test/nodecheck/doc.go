// Package nodecheck tests the check of pods before the first generation, on real kubelets with plain torchrun jobs: a healthy gang
// passes and trains, and a pod on a node whose arithmetic is wrong is named, and replaced on another node before the first step.
package nodecheck
