// Package nodecheck tests the check of pods before the first generation, on real kubelets with plain torchrun jobs: a healthy gang
// passes and trains, and a pod whose arithmetic is wrong is named and replaced before the first step.
package nodecheck
