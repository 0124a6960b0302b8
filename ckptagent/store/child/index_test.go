//go:build linux

package child

import (
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestAnIndexEndsAlone: any failure of the index process is returned as an error. When memory is short the kernel ends that process before
// all others of the pod.
func TestAnIndexEndsAlone(t *testing.T) {
	for script, want := range map[string]string{
		"echo all": "",
		"until grep -q 1000 /proc/$$/oom_score_adj; do sleep 0.01; done": "",
		"echo half; kill -9 $$":            "or was killed: signal: killed",
		"exit 2":                           "exit status 2",
		"echo why >&2; exit 1":             "why",
		"yes | head -c 100000 >&2; exit 1": "y\ny",
	} {
		out, err := Index(exec.Command("sh", "-c", script))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(out)
		if _, again := out.Read(make([]byte, 1)); again != err && want != "" {
			t.Errorf("%s: once more: %v", script, again)
		}
		_ = out.Close()
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", script, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > maxSaid {
			t.Errorf("%s: %.200v, want %s", script, err, want)
		}
	}
	if _, err := Index(exec.Command("/nowhere/python3")); err == nil || !strings.Contains(err.Error(), "starting the process that names its parts") {
		t.Errorf("no such program: %v", err)
	}
	out, err := Index(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	_ = out.Close() // it would wait
	// An interpreter may be a script that starts another process, which keeps the output open.
	out, err = indexWithin(exec.Command("sh", "-c", "sleep 600 & wait"), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err == nil || !strings.Contains(err.Error(), "took longer than 50ms") {
		t.Errorf("one that starts another: %v", err)
	}
}
