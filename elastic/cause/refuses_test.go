package cause

import (
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestRefuses: only an exception of the rank's own code, which neither a device nor a peer can have caused, is the script's refusal.
func TestRefuses(t *testing.T) {
	for text, want := range map[string]bool{
		"ValueError: batch 12 does not divide by 4":                                                    true,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB":                       true,
		"RuntimeError: CUDA error: uncorrectable ECC error encountered":                                false,
		"torch.AcceleratorError: CUDA error: unspecified launch failure":                               false,
		"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer": false,
		"ConnectionResetError: [Errno 104] Connection reset by peer":                                   false,
		"": false,
	} {
		c, _ := First([]Exit{{Rank: 2, Slot: 1, Exit: protocol.Exit{Code: 1, Traceback: text}}})
		if c.Refuses() != want {
			t.Errorf("%q: %t, cause %+v", text, c.Refuses(), c)
		}
	}
	for what, e := range map[string]protocol.Exit{
		"a kill": {Code: 137, Signal: 9, Traceback: "x"}, "an exit code": {Code: 3}, "a crash": {Code: 139, Signal: 11, Traceback: "x"},
	} {
		if c, _ := First([]Exit{{Exit: e}}); c.Refuses() {
			t.Errorf("%s: %+v", what, c)
		}
	}
	restoring := protocol.Exit{Code: 1, Traceback: "ValueError: x", Restoring: true}
	if c, _ := First([]Exit{{Exit: restoring}}); c.Refuses() {
		t.Errorf("a failure to restore is about the step: %+v", c)
	}
}
