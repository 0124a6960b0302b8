package story

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const twoSteps = "hello\nstep 1 rank 0 loss 0x1.8p+1\nstep 1 rank 1 loss 0x1.9p+1\nstep 2 rank 0 loss 0x1.4p+1\nstep 2 rank 1 loss 0x1.5p+1\n"

func read(t *testing.T, text string) *Steps {
	t.Helper()
	s := NewSteps()
	if err := s.Read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCompareSeesOneBit(t *testing.T) {
	undisturbed := read(t, twoSteps).Since(0)
	again := twoSteps + "step 2 rank 0 loss 0x1.4p+1\nstep 2 rank 1 loss 0x1.5p+1\n"
	got, err := Compare(read(t, again).Since(0), undisturbed, []int64{1})
	if err != nil || got.Compared != 6 || got.Equal != 6 {
		t.Fatalf("Compare = %+v, %v; want 6 of 6", got, err)
	}
	for name, text := range map[string]string{
		"one bit in a recomputed step": twoSteps + "step 2 rank 1 loss 0x1.5000001p+1\n",
		"a step is missing":            strings.Replace(twoSteps, "step 2 rank 1 loss 0x1.5p+1\n", "", 1),
		"a step too many":              twoSteps + "step 3 rank 0 loss 0x1p+1\n",
		"nothing":                      "",
	} {
		if _, err := Compare(read(t, text).Since(0), undisturbed, nil); err == nil {
			t.Errorf("%s: Compare found no difference", name)
		}
	}
	if _, err := Compare(nil, nil, nil); err == nil {
		t.Error("two empty runs compare as equal")
	}
}

func TestLongestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSteps()
		for _, pause := range []time.Duration{0, 9, 1, 3, 2} {
			time.Sleep(pause * time.Second)
			s.take("step 1 rank 0 loss 0x1p+1")
		}
		for n, want := range map[int]time.Duration{0: 9, 2: 3, 4: 2} {
			if got := s.LongestPause(n); got != want*time.Second {
				t.Errorf("from loss %d on the longest pause was %s, not %d s", n, got, want)
			}
		}
		if time.Sleep(time.Minute); s.LongestPause(4) != time.Minute {
			t.Error("a pause that goes on does not count")
		}
	})
}

func TestLowestWaitsForAllRanks(t *testing.T) {
	s := read(t, twoSteps)
	if got := s.Lowest(2); got != 2 {
		t.Errorf("Lowest(2) = %d, want 2", got)
	}
	if got := s.Lowest(3); got != 0 {
		t.Errorf("Lowest(3) = %d, want 0: one rank has not printed", got)
	}
}
