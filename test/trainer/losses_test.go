package trainer

import (
	"maps"
	"strings"
	"testing"
)

// TestLosses: only whole lines count, and of each rank only the newest generation. A repeated step must have the same loss.
func TestLosses(t *testing.T) {
	const log = "1 0 start 0\n1 0 done 1 0x1p-1\n1 0 saved 1\n1 1 done 1 0x1p-2\n2 0 done 1 0x1p-1\n2 0 done 2 0x1p-3\n2 1 done 2 0x"
	losses, newest, err := Losses(log)
	if err != nil {
		t.Fatal(err)
	}
	want := map[At]string{{1, 0}: "0x1p-1", {1, 1}: "0x1p-2", {2, 0}: "0x1p-3"}
	if !maps.Equal(losses, want) || !maps.Equal(newest, map[int64]int64{0: 2, 1: 1}) {
		t.Errorf("%v, generations %v", losses, newest)
	}
	if err := Compare(losses, want); err != nil {
		t.Error(err)
	}
	losses[At{1, 1}] = "0x1p-9"
	if err := Compare(losses, want); err == nil || !strings.Contains(err.Error(), "step 1 of rank 1") {
		t.Error(err)
	}
	if _, _, err := Losses(log + "\n3 1 done 1 0x1p-9\n"); err == nil {
		t.Error("another loss of the same step is the same")
	}
	if _, _, err := Losses("1 0 start 0\n"); err == nil {
		t.Error("no losses are some")
	}
}
