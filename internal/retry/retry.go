// Package retry repeats a call until it succeeds, its context ends, or its error is final. The pauses that the package
// provides are jittered, so that many clients do not retry at the same moment.
package retry

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Do calls f until it succeeds, ctx ends, or after returns false for its error; otherwise after returns the pause. The error is f's last
// one, and wraps that of an ended ctx.
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

// AfterConflict returns the pauses after a conflict: another client wrote the same object, and may write again.
func AfterConflict() *wait.Backoff {
	return &wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: time.Second}
}

// WhileAway returns the pauses while the API server does not answer or returns errors.
func WhileAway() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}
}
