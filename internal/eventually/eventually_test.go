package eventually

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	broken := errors.New("broken off")
	for name, c := range map[string]struct {
		holdsAfter, endsAfter time.Duration
		took                  time.Duration
		words                 []string
	}{
		"at once":    {},
		"in time":    {holdsAfter: 10 * time.Second, took: 10 * time.Second},
		"never":      {holdsAfter: time.Hour, took: time.Minute, words: []string{"the end: not within 1m0s; seen last: still no"}},
		"broken off": {holdsAfter: time.Hour, endsAfter: time.Second, took: time.Second, words: []string{"the end: broken off; seen last: still no"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				if c.endsAfter > 0 {
					time.AfterFunc(c.endsAfter, func() { cancel(broken) })
				}
				defer cancel(nil)
				began, asked := time.Now(), 0
				err := Wait(ctx, "the end", time.Minute, func(context.Context) (bool, any) {
					asked++
					return time.Since(began) >= c.holdsAfter, func() string { return "still no" }
				})
				if took := time.Since(began); took < c.took || took > c.took+100*time.Millisecond {
					t.Errorf("it took %s, not %s", took, c.took)
				}
				if (err == nil) != (c.words == nil) {
					t.Fatal(err)
				}
				for _, w := range c.words {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v does not say %q", err, w)
					}
				}
				if c.endsAfter > 0 && !errors.Is(err, broken) {
					t.Errorf("%v is not why it was broken off", err)
				}
				if asked > 1000 {
					t.Errorf("asked %d times", asked)
				}
			})
		})
	}
}
