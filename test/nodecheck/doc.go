// Package nodecheck tests the check of pods before the first generation, on real kubelets with plain torchrun jobs. Healthy
// gangs pass and train, also when agents and leaders are killed in a round. Pods with a fault of arithmetic, of a process
// that hangs or of the network are named, and replaced on another node before the first step. Slow pods and paths between
// pods that are whole are only reported, and a tenant whose agents accuse all pods excludes no node.
package nodecheck
