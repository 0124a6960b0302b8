//go:build !race

package eventually

// Slowdown is the factor by which code may be slower in a test.
const Slowdown = 1
