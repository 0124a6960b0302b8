package waiting

import "testing"

func TestElements(t *testing.T) {
	for sizes, want := range map[string]string{"": "1", "1": "1", "2x3": "6", "6": "6", "0x4": "0", "#a1b2": "#a1b2"} {
		if got := elements(sizes); got != want {
			t.Errorf("%q has %s elements, want %s", sizes, got, want)
		}
	}
}
