//go:build linux

// Package proc starts, watches and ends processes for the agent: the init mode that is PID 1 of a
// training container, ranks, warm standbys and the shim that replaces torchrun.
//
// Ranks survive the agent, and their exit codes reach the next agent. Output of ranks goes unchanged where the launcher's own output goes.
// EndAll returns only when no process that this package started, nor a descendant of one, is left. init returns the exit code of the user's
// command.
package proc
