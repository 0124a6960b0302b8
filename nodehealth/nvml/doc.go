// Package nvml asks NVIDIA's library how the GPUs are. All calls are made by a child process, which may
// hang for ever: its parent gives it a deadline, kills it and says so, and is never blocked by it, not even
// where it cannot be killed. That the library does not answer is a finding like any other.
//
// The only cgo is in this package, and of the programs only the child, holdfast-nvml, is built with it. Without it the child
// says that it has no way to ask.
package nvml
