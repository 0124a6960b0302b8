package hack

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// verbs stands in for make: each names itself. In some cases agents kill the shell that runs them as a job, or nodehealth fails, or a test is
// skipped; in others e2e has the case's shell ended, up from itself, and like replace and fmt would go on for long. Tests that fail are of the log that
// the case has; "flakes" are green when they are run again.
const verbs = `#!/bin/bash
for verb; do :; done
[ -z "$SAID" ] || echo "$verb" >"$SAID"
shells() { # ours, up from this one; not those of a make test that runs this test
	local pid=$$
	while pid=$(($(ps -o ppid= "$pid"))) && [ $pid -gt 1 ] && [ "$(readlink /proc/$pid/cwd)" = "$(pwd -P)" ]; do
		case $(ps -o args= "$pid") in *hack/test.sh*) echo "$pid" ;; esac
	done
}
if [ -n "${AGAIN+set}" ] && [ "${CASE#flake}" != "$CASE" ]; then
	echo "again: $verb: $AGAIN"
	exit 0
fi
case $verb-$CASE in
cluster-tests-*) echo e2e replace scheduling nodehealth ;;
agents-dies) kill -9 "$(ps -o ppid= $PPID)" ;;
cluster-nodehealth-fails) echo "--- FAIL: TestDaemon"; exit 1 ;;
unit-flakes | unit-flakes-four | unit-again) printf '%s' "$UNIT_LOG"; exit 1 ;;
python-unit-flakes) printf '%s' "$PYTHON_LOG"; exit 1 ;;
launchers-flakes) kill -9 "$(ps -o ppid= $PPID)" ;;
unit-skips) printf '=== RUN   TestLeft\n    left_test.go:1: why\n--- SKIP: TestLeft (0.00s)\nPASS\nok  \tholdfast.dev/holdfast/left\t0.1s\n' ;;
python-unit-skips) printf "test_left (tests.test_left.Left.test_left)\nDoc ... skipped 'why'\n" ;;
cluster-e2e-job | cluster-e2e-row | cluster-e2e-main)
	ended=$(shells | sed -n "$(case $CASE in job) echo 2 ;; row) echo 3 ;; main) echo '$' ;; esac)p")
	sleep 1 # the other row and the checks have begun
	kill -TERM $ended
	sleep 300
	;;
fmt-row | fmt-main | cluster-replace-row | cluster-replace-main | build-main) sleep 300 ;;
esac
exit 0
`

// script is hack/test.sh with what stands in for what it calls, in a folder of its own.
func script(t *testing.T, name, skips string, env ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("test.sh")
	if err != nil {
		t.Fatal(err)
	}
	failed, err := os.ReadFile("failed.awk")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"hack/test.sh": string(script), "hack/failed.awk": string(failed), "hack/ready.sh": "#!/bin/sh\n", "bin/make": verbs, "hack/skips.txt": skips,
		"bin/id": "#!/bin/sh\necho ${USER_ID:-0}\n", "bin/protoc": "#!/bin/sh\n",
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
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "hack/test.sh"))
	cmd.Env = append(append(os.Environ(), "CI=", "CASE="+name, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH")), env...)
	return cmd
}

// TestGreenIsWhatEveryJobSaid: a job that ends without a word is as red as one that fails, and so is a test that was skipped and is not
// listed, or is listed and was not skipped.
func TestGreenIsWhatEveryJobSaid(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the jobs beside clusters run on Linux alone")
	}
	const head = "# what is skipped\n"
	for name, c := range map[string]struct {
		kind, skips string
		exit        int
		names       string // in the list of what failed
	}{
		"good":     {"good", head, 0, ""},
		"fails":    {"fails", head, 1, "--- FAIL: TestDaemon"},
		"dies":     {"dies", head, 1, "agents: its shell ended with status 137"},
		"listed":   {"skips", head + "left TestLeft: it cannot be\npython tests.test_left.Left.test_left: nor that\n", 0, ""},
		"unlisted": {"skips", head + "left TestLeft: it cannot be\n", 1, "> python tests.test_left.Left.test_left"},
		"not left": {"good", head + "left TestLeft: it cannot be\n", 1, "< left TestLeft"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := script(t, c.kind, c.skips)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d", code, c.exit)
			}
			_, failed, _ := strings.Cut(string(out), "FAILED:")
			if !strings.Contains(failed, c.names) || t.Failed() {
				t.Errorf("%q is not named in\n%s", c.names, out)
			}
		})
	}
}

// Logs of jobs whose tests failed: one test beside another's output, a package that broke off; a test and its subtests in Python.
const (
	unitLog = `=== RUN   TestFine
--- PASS: TestFine (0.00s)
=== RUN   TestSlow
=== RUN   TestSlow/part
=== NAME  TestSlow/part
    slow_test.go:12: the last word
--- FAIL: TestSlow (0.00s)
    --- FAIL: TestSlow/part (0.00s)
FAIL
FAIL	holdfast.dev/holdfast/a/slow	0.1s
ok  	holdfast.dev/holdfast/a/fine	0.1s
`
	brokenLog = `=== RUN   TestBroken
panic: test timed out after 30m0s
FAIL	holdfast.dev/holdfast/a/broken	0.1s
`
	pythonLog = `test_part (tests.test_part.Part.test_part) ... FAIL
======================================================================
FAIL: test_part (tests.test_part.Part.test_part) (n=1)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "tests/test_part.py", line 1, in test_part
AssertionError: 1 != 2

======================================================================
FAIL: test_part (tests.test_part.Part.test_part) (n=2)
----------------------------------------------------------------------
AssertionError: 2 != 3

----------------------------------------------------------------------
Ran 3 tests in 0.1s
`
)

// TestFlakesAreNamed: what failed runs again, alone. Where it is green it is listed with its first failure and the run is green; where it
// is red, or more than three failed, the run is red.
func TestFlakesAreNamed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the jobs beside clusters run on Linux alone")
	}
	for name, c := range map[string]struct {
		kind, unit, python string
		exit               int
		says               []string
	}{
		"green then": {"flakes", unitLog, pythonLog, 0, []string{
			"again: unit: a/slow TestSlow\n", "again: python-unit: python tests.test_part.Part.test_part\n", "again: launchers:  \n",
			"\nFLAKY unit a/slow TestSlow: slow_test.go:12: the last word\n",
			"\nFLAKY python-unit python tests.test_part.Part.test_part: AssertionError: 1 != 2\n",
			"\nFLAKY launchers  : its shell ended with status 137\n",
		}},
		"red again":    {"again", unitLog, "", 1, []string{"] FAILED:", "--- FAIL: TestSlow"}},
		"a whole one":  {"flakes-four", brokenLog, "", 0, []string{"again: unit: a/broken \n", "FLAKY unit a/broken : panic: test timed out after 30m0s"}},
		"four of them": {"flakes-four", unitLog + unitLog + unitLog + unitLog, "", 1, []string{"more than three tests failed", "] FAILED:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := script(t, c.kind, "", "UNIT_LOG="+c.unit, "PYTHON_LOG="+c.python)
			out, _ := cmd.CombinedOutput()
			logs := ""
			for _, job := range []string{"unit", "python-unit", "launchers"} {
				log, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(cmd.Path)), ".cache/test", job))
				logs += string(log)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d", code, c.exit)
			}
			for _, words := range c.says {
				if !strings.Contains(string(out)+logs, words) {
					t.Errorf("%q is not said", words)
				}
			}
			if t.Failed() {
				t.Logf("%s\n%s", out, logs)
			}
		})
	}
}

// TestWhateverIsEndedEndsAll: where any of the shells is ended, what it had begun ends. Where it was the whole, or a row of jobs, nothing
// else is begun; a job that was ended is one that failed.
func TestWhateverIsEndedEndsAll(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the jobs beside clusters run on Linux alone")
	}
	for name, c := range map[string]struct {
		exit     int
		launched bool // what comes when the clusters are gone
	}{"job": {1, true}, "row": {1, false}, "main": {130, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := filepath.Join(t.TempDir(), "said")
			if err := syscall.Mkfifo(said, 0o600); err != nil {
				t.Fatal(err)
			}
			fifo, err := os.OpenFile(said, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer fifo.Close()
			cmd := script(t, name, "", "SAID="+said)
			out := &strings.Builder{}
			cmd.Stdout, cmd.Stderr = out, out // a pipe, which what lives holds open
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d:\n%s", code, c.exit, out)
			}
			_, _ = fifo.WriteString("END\n")
			launched := false
			for lines := bufio.NewScanner(fifo); lines.Scan() && lines.Text() != "END"; {
				launched = launched || lines.Text() == "launchers"
			}
			if launched != c.launched {
				t.Errorf("what comes later was begun: %v, want %v:\n%s", launched, c.launched, out)
			}
		})
	}
}

// TestCIIsNotLeftOut: with CI set a machine without root is refused before anything is begun.
func TestCIIsNotLeftOut(t *testing.T) {
	cmd := script(t, "good", "", "CI=true", "USER_ID=1000")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "end-to-end tests on real kubelets: they need root") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
