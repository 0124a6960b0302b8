package story

import (
	"context"
	"errors"
	"testing"
)

func TestAside(t *testing.T) {
	broken := errors.New("broken")
	if got, err := begin(func() (string, error) { return "half", broken }).end(t.Context()); got != "half" || !errors.Is(err, broken) {
		t.Errorf("what broke in the middle ended with %q, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := make(chan struct{})
	defer close(never)
	if _, err := begin(func() (string, error) { <-never; return "", nil }).end(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("when the story ended it went on waiting, or said %v", err)
	}
}
