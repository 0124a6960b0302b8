// Package nvml queries NVIDIA's library for the state of the GPUs. A child process makes all calls, because a call
// may hang for ever: after a deadline the parent kills the child and reports the hang; a child that cannot be killed does
// not block it. A library that does not answer is a finding like any other.
//
// Only this package uses cgo, and of the programs only the child, holdfast-nvml, is built with it. Without cgo the
// child reports that it cannot query.
package nvml
