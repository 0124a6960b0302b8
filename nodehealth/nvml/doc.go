// Package nvml queries NVIDIA's library for the state of the GPUs. A child process makes all calls, because they may
// hang for ever: its parent sets a deadline, kills it, reports it, and is never blocked by it, even if it cannot be
// killed. A library that does not answer is a finding like any other.
//
// Only this package uses cgo, and of the programs only the child, holdfast-nvml, is built with it. Without cgo the
// child reports that it cannot query.
package nvml
