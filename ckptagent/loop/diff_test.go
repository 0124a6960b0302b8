//go:build linux

package loop_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
)

// expected differ between two generations, whatever way they were started.
var expected = []string{"MASTER_PORT", "HOLDFAST_GENERATION", "TORCHELASTIC_RESTART_COUNT", "HOLDFAST_RESTORE_STEP", "TORCHELASTIC_ERROR_FILE"}

// differences lists what two lines of JSON objects do not have in common.
func differences(t *testing.T, a, b string) []string {
	t.Helper()
	var x, y map[string]any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%v in %q", err, a)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	return compare("", x, y)
}

func compare(at string, x, y map[string]any) (out []string) {
	keys := map[string]bool{}
	for k := range x {
		keys[k] = true
	}
	for k := range y {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		inner, ok := x[k].(map[string]any)
		other, ok2 := y[k].(map[string]any)
		switch {
		case ok && ok2:
			out = append(out, compare(at+k+".", inner, other)...)
		case !slices.Contains(expected, k) && !reflect.DeepEqual(x[k], y[k]):
			out = append(out, fmt.Sprintf("%s%s: %v, then %v", at, k, x[k], y[k]))
		}
	}
	return out
}
