// Package retry repeats a call until it succeeds. It promises to end with its context. All delays are jittered, so
// that clients do not retry in lockstep.
package retry

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Do calls f until it succeeds, ctx ends, or after says of its error not to go on; else after says how long to pause.
// The error is f's last one, and wraps that of a ctx that has ended.
func Do(ctx context.Context, after func(error) (pause time.Duration, again bool), f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		pause, again := after(err)
		if !again {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-t.C:
		}
	}
}

// AfterConflict are the pauses where somebody else wrote the same object meanwhile, who may be about to write again.
func AfterConflict() *wait.Backoff {
	return &wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: time.Second}
}

// WhileAway are the pauses where the API server does not answer, or not well.
func WhileAway() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}
}
