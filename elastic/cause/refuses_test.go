package cause

import (
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestRefuses: only an exception of the rank's own code, which neither a device nor a peer can have caused, is the script's refusal, and
// none that it would raise with any number of ranks.
func TestRefuses(t *testing.T) {
	for text, want := range map[string]bool{
		"ValueError: batch 12 does not divide by 4":                                                    true,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB":                       true,
		"RuntimeError: CUDA error: uncorrectable ECC error encountered":                                false,
		"torch.AcceleratorError: CUDA error: unspecified launch failure":                               false,
		"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer": false,
		"ConnectionResetError: [Errno 104] Connection reset by peer":                                   false,
		"": false,
		"FileNotFoundError: [Errno 2] No such file or directory: 'rank-3.pt'": true,
	} {
		c, _ := First([]Exit{{Rank: 2, Slot: 1, Exit: protocol.Exit{Code: 1, Traceback: text}}})
		if c.Refuses() != want || c.Lacks() {
			t.Errorf("%q: %t, cause %+v", text, c.Refuses(), c)
		}
	}
	for _, text := range []string{
		"ModuleNotFoundError: No module named 'apex'",
		"Traceback (most recent call last):\n  File \"/app/train.py\", line 1, in <module>\n    import cv2\nImportError: libGL.so.1: cannot open shared object file",
		"Traceback (most recent call last):\n  File \"/app/a.py\", line 1, in f\n    import x\nModuleNotFoundError: No module named 'x'\n\n" +
			"The above exception was the direct cause of the following exception:\n\n" +
			"Traceback (most recent call last):\n  File \"/app/a.py\", line 3, in f\n    g()\nRuntimeError: Failed to import b because of an error",
		"  File \"/app/train.py\", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax",
		"OSError: [Errno 28] No space left on device",
		"PermissionError: [Errno 13] Permission denied: '/data'",
		"RuntimeError: No CUDA GPUs are available",
		"socket.gaierror: [Errno -2] Name or service not known",
	} {
		if c, _ := First([]Exit{{Exit: protocol.Exit{Code: 1, Traceback: text}}}); !c.Lacks() || c.Refuses() {
			t.Errorf("%q does not depend on the number of ranks: %+v", text, c)
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
