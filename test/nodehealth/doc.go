// Package nodehealth has only tests: the daemon that ships, on real kubelets, with a pretended driver that it loads as
// it loads NVIDIA's.
package nodehealth
