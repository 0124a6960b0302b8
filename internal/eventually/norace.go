//go:build !race

package eventually

// Slowdown is how much longer than by itself code may take in a test.
const Slowdown = 1
