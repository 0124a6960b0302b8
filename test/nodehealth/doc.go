// Package nodehealth tests holdfast-node as it is shipped, on real kubelets. A simulated driver, loaded like NVIDIA's
// library, provides the GPUs.
package nodehealth
