//go:build race

package eventually

// Slowdown is the factor by which code may be slower in a test: the race detector checks each memory access.
const Slowdown = 20
