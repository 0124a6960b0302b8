// Package eventually waits in tests and tools until a condition holds. After a timeout it prints the last observation.
// All tests have the same timeout, which only decides how soon a failure is reported; it is not a performance target.
package eventually

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// Timeout far exceeds any duration on a busy machine. The environment variable HOLDFAST_PATIENCE multiplies it.
var Timeout = func() time.Duration {
	const timeout = 5 * time.Minute
	if by, err := strconv.ParseFloat(os.Getenv("HOLDFAST_PATIENCE"), 64); err == nil && by > 0 {
		return time.Duration(by * float64(timeout))
	}
	return timeout
}()

// Holds waits until a condition holds, and fails the test after Timeout. The condition also returns what it saw, for the failure message;
// if that is expensive to compute, as a func() string, which is called only after a failure.
func Holds(t testing.TB, what string, condition func() (holds bool, seen any)) {
	t.Helper()
	if err := Wait(context.Background(), what, Timeout, func(context.Context) (bool, any) { return condition() }); err != nil {
		t.Fatal(err)
	}
}

// Succeeds is Holds for a function whose error explains why it does not succeed yet.
func Succeeds(t testing.TB, what string, try func() error) {
	t.Helper()
	Holds(t, what, func() (bool, any) { err := try(); return err == nil, err })
}

// Wait is Holds with a given limit, also for tools: it ends with ctx.
func Wait(ctx context.Context, what string, limit time.Duration, condition func(context.Context) (holds bool, seen any)) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for began := time.Now(); ; {
		holds, seen := condition(limited)
		if holds {
			return nil
		}
		select {
		case <-limited.Done():
			if say, ok := seen.(func() string); ok {
				seen = say()
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s: %w; seen last: %v", what, context.Cause(ctx), seen)
			}
			return fmt.Errorf("%s: not within %s; seen last: %v", what, limit, seen)
		case <-time.After(pause(time.Since(began))):
		}
	}
}

// pause is short at first, for exact measurements, and later at most a load that an API server tolerates.
func pause(waited time.Duration) time.Duration {
	return min(max(waited/10, time.Millisecond), 100*time.Millisecond)
}
