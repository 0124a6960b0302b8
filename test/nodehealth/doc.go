// Package nodehealth has only tests: the shipped daemon, on real kubelets, with a simulated driver that it loads like
// NVIDIA's.
package nodehealth
