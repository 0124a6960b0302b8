// Package seeds gives random tests their seeds: fixed ones, so that a failure repeats, and fresh ones, so that each run
// tries new cases. A failing test prints its seed. HOLDFAST_SEED=<seed> runs only that seed.
package seeds

import (
	"iter"
	"os"
	"strconv"
	"testing"
	"time"
)

// variable is the environment variable with the only seed to try.
const variable = "HOLDFAST_SEED"

// All yields the seeds below fixed, and one fresh seed for ten of them.
func All[S int64 | uint64](t testing.TB, fixed S) iter.Seq[S] {
	t.Helper()
	fresh := S(fresh(t))
	if One() {
		return tried(t, func(yield func(S) bool) { yield(fresh) })
	}
	return tried(t, func(yield func(S) bool) {
		for i := S(0); i <= fixed+fixed/10; i++ {
			seed := i
			if i >= fixed {
				seed = fresh + i - fixed
			}
			if !yield(seed) {
				return
			}
		}
	})
}

// Fresh returns one fresh seed, for a test with a single long history.
func Fresh(t testing.TB) uint64 {
	t.Helper()
	seed := fresh(t)
	t.Cleanup(func() {
		if t.Failed() {
			say(t, seed)
		}
	})
	return seed
}

// fresh returns the seed to be tried alone, or a new one.
func fresh(t testing.TB) uint64 {
	t.Helper()
	if !One() {
		return uint64(time.Now().UnixNano())
	}
	one, err := strconv.ParseInt(os.Getenv(variable), 10, 64)
	if err != nil || one < 0 {
		t.Fatalf("%s=%q is no seed: give the number that a failed test names", variable, os.Getenv(variable))
	}
	return uint64(one)
}

// say logs the seed at which a test failed.
func say[S int64 | uint64](t testing.TB, seed S) {
	t.Helper()
	t.Logf("failed at seed %d: %s=%d tries it alone", seed, variable, seed)
}

// One reports whether only one seed is tried; a test then must not require that all its cases occurred.
func One() bool { return os.Getenv(variable) != "" }

// tried makes a failing test log the first seed at which it failed.
func tried[S int64 | uint64](t testing.TB, all iter.Seq[S]) iter.Seq[S] {
	return func(yield func(S) bool) {
		before, done := t.Failed(), false
		var at S
		look := func() {
			if t.Failed() && !before && !done {
				done = true
				say(t, at)
			}
		}
		t.Cleanup(look) // if the test ends during a seed
		for seed := range all {
			at = seed
			if !yield(seed) {
				done = true // a loop that breaks has not failed
				return
			}
			look()
		}
		done = true
	}
}
