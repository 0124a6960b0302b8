package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

var errAway, errWrong = errors.New("away"), errors.New("wrong")

// tries calls a function that fails until its context ends, and returns when it was called.
func tries(t *testing.T, pauses *wait.Backoff, span time.Duration) (at []time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		began := time.Now()
		err = Do(ctx, func(error) (time.Duration, bool) { return pauses.Step(), true }, func(context.Context) error {
			at = append(at, time.Since(began))
			return errAway
		})
		if took := time.Since(began); took != span {
			t.Errorf("it ended after %s, its context after %s", took, span)
		}
	})
	return at, err
}

func TestPausesGrowAndPart(t *testing.T) {
	for name, c := range map[string]struct {
		pauses func() *wait.Backoff
		most   time.Duration // between two calls
	}{"conflict": {AfterConflict, 2 * time.Second}, "away": {WhileAway, 7500 * time.Millisecond}} {
		one, err := tries(t, c.pauses(), time.Minute)
		other, _ := tries(t, c.pauses(), time.Minute)
		if !errors.Is(err, errAway) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: it ended with %v", name, err)
		}
		if len(one) < 8 || len(one) > 80 {
			t.Errorf("%s: %d calls in a minute: %v", name, len(one), one)
		}
		for i := 1; i < len(one); i++ {
			if gap := one[i] - one[i-1]; gap > c.most || i > 12 && gap < c.most/4 {
				t.Errorf("%s: %s before call %d", name, gap, i)
			}
		}
		if slices.Equal(one, other) {
			t.Errorf("%s: two go on in step: %v", name, one)
		}
	}
}

func TestWhatIsNoUseIsNotTriedAgain(t *testing.T) {
	calls := 0
	after := func(err error) (time.Duration, bool) { return 0, errors.Is(err, errAway) }
	err := Do(t.Context(), after, func(context.Context) error {
		if calls++; calls < 3 {
			return errAway
		}
		return errWrong
	})
	if !errors.Is(err, errWrong) || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if err := Do(t.Context(), after, func(context.Context) error { calls++; return nil }); err != nil || calls != 4 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
