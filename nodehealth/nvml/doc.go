// Package nvml queries NVIDIA's library for the state of the GPUs. A child process makes all calls, because a call may
// hang for ever. If the child does not answer in time, the parent kills it and reports the hang as a finding. The
// parent does not wait for a child that cannot be killed.
//
// No other package uses cgo, and only the child's program, holdfast-nvml, is built with it. In a build without cgo the
// child reports that it cannot query GPUs.
package nvml
