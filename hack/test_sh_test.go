package hack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// verbs stands in for make: agents kill the shell that runs them as a job, seen fails.
const verbs = `#!/bin/bash
for verb; do :; done
case $verb-$CASE in
cluster-tests-*) echo e2e replace scheduling seen ;;
agents-dies) kill -9 "$(ps -o ppid= $PPID)" ;;
cluster-seen-fails) echo "--- FAIL: TestSeen"; exit 1 ;;
esac
exit 0
`

// TestGreenIsWhatEveryJobSaid: a job that ends without a word is as red as one that fails.
func TestGreenIsWhatEveryJobSaid(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the jobs beside clusters run on Linux alone")
	}
	for name, c := range map[string]struct {
		exit  int
		names string // in the list of what failed
	}{
		"good":  {0, ""},
		"fails": {1, "--- FAIL: TestSeen"},
		"dies":  {1, "it ended without a word"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script, err := os.ReadFile("test.sh")
			if err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{
				"hack/test.sh": string(script), "hack/ready.sh": "#!/bin/sh\n", "bin/make": verbs,
				"bin/id": "#!/bin/sh\necho 0\n", "bin/protoc": "#!/bin/sh\n",
			} {
				file := filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				syscall.ForkLock.RLock() // as in ready
				err := os.WriteFile(file, []byte(text), 0o755)
				syscall.ForkLock.RUnlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(dir, "hack/test.sh"))
			cmd.Env = append(os.Environ(), "CASE="+name, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d", code, c.exit)
			}
			_, failed, _ := strings.Cut(string(out), "FAILED:\n")
			if !strings.Contains(failed, c.names) || t.Failed() {
				t.Errorf("%q is not named in\n%s", c.names, out)
			}
		})
	}
}
