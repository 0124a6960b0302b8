package ckpt

import (
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestNextWish: the number of a new request is that of no earlier one, in the Job or in the status.
func TestNextWish(t *testing.T) {
	g := &v1alpha1.Gang{}
	if n := NextWish(g, 0); n != 1 {
		t.Errorf("the first wish is %d", n)
	}
	g.Spec.Storage = &v1alpha1.GangStorage{PinWish: 5}
	if n := NextWish(g, 6); n != 7 {
		t.Errorf("after the Job's 6 it is %d", n)
	}
	g.Status.Run = &v1alpha1.RunStatus{PinWish: 9}
	if n := NextWish(g, 0); n != 10 || Answers(g, n) {
		t.Errorf("after an answer to 9, and a Job that says none, it is %d", n)
	}
	g.Status.Run = nil
	if n := NextWish(g, 0); n != 6 {
		t.Errorf("after a Gang's 5 it is %d", n)
	}
}
