package story

import "context"

// aside is a task in the background; a later chapter reads its outcome once.
type aside[T any] chan outcome[T]

type outcome[T any] struct {
	value T
	err   error
}

// begin starts a task in the background.
func begin[T any](do func() (T, error)) aside[T] {
	c := make(aside[T], 1)
	go func() {
		value, err := do()
		c <- outcome[T]{value, err}
	}()
	return c
}

// end waits for its outcome, at most until the story ends.
func (a aside[T]) end(ctx context.Context) (T, error) {
	select {
	case o := <-a:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
