package story

import "context"

// aside is what goes on beside the chapters; a later chapter asks once what came of it.
type aside[T any] chan outcome[T]

type outcome[T any] struct {
	value T
	err   error
}

// begin has it done aside.
func begin[T any](do func() (T, error)) aside[T] {
	c := make(aside[T], 1)
	go func() {
		value, err := do()
		c <- outcome[T]{value, err}
	}()
	return c
}

// end waits for what came of it, no longer than the story goes on.
func (a aside[T]) end(ctx context.Context) (T, error) {
	select {
	case o := <-a:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
