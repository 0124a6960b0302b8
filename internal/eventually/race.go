//go:build race

package eventually

// Slowdown is how much longer than by itself code may take in a test: the race detector looks at each access to memory.
const Slowdown = 20
