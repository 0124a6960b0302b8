// Package doctor tests `kubectl holdfast doctor` on real API servers. On a cluster with simulated nodes faults are
// planted one after another, and each must be found; on real kubelets a healthy installation must have no finding.
package doctor
