//go:build linux

// Package proc starts, watches and ends processes for the agent. The package also contains the init mode, which is PID
// 1 of a training container, and the shim, which replaces torchrun.
//
//   - Ranks survive the death of the agent. The next agent finds their exit codes in a file that init writes.
//   - The output of ranks goes unchanged to where the launcher's output goes.
//   - EndAll returns only when no process of the generation is left; its comment names the processes that can escape.
//   - init returns the exit code of the user's command; 137 becomes 1.
package proc
