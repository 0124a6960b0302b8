package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// limit bounds every wait, on a very busy machine.
const limit = 2 * time.Minute

// TestMain: with RUNTESTS set this binary is runtests itself.
func TestMain(m *testing.M) {
	if os.Getenv("RUNTESTS") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// verbs replaces make. Each target writes its name to the file SAID. CASE selects other behaviour; UNIT is the log of failing unit tests.
const verbs = `#!/bin/bash
for verb; do :; done
[ -z "$SAID" ] || echo "$verb" >"$SAID"
[ -z "${AGAIN+set}" ] || echo "again: $verb: $AGAIN"
case $verb-$CASE-${AGAIN+again} in
cluster-tests-*) echo e2e replace scheduling nodehealth ;;
agents-dies-*) kill -9 $$ ;;
agents-flakes-) kill -9 $$ ;;
cluster-nodehealth-fails-*) printf -- '--- FAIL: TestDaemon\nFAIL\tholdfast.dev/holdfast/test/nodehealth\t1s\n'; exit 1 ;;
unit-skips-) printf '=== RUN   TestLeft\n    left_test.go:1: why\n--- SKIP: TestLeft (0.00s)\nPASS\nok  \tholdfast.dev/holdfast/left\t0.1s\n' ;;
python-unit-skips-) printf "test_left (tests.test_left.Left.test_left)\nDoc ... skipped 'why'\n" ;;
unit-flakes- | unit-again-*) printf '%s' "$UNIT"; exit 1 ;;
cluster-e2e-job-*) sleep 1; (sleep 300) & kill -KILL $$ ;; # once the other row and the checks have begun
python-unit-main-* | fmt-main-*) sleep 300 ;;
esac
exit 0
`

const slowLog = `=== RUN   TestFine
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

// command returns runtests in a temporary folder, with replacements for the programs that it calls.
func command(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("clusters run on Linux alone")
	}
	dir := t.TempDir()
	skips := "# what is skipped\n"
	for _, e := range env {
		if text, ok := strings.CutPrefix(e, "SKIPS="); ok {
			skips += text
		}
	}
	for path, text := range map[string]string{
		"hack/ready.sh": "#!/bin/sh\n", "hack/skips.txt": skips, "bin/make": verbs, "bin/protoc": "#!/bin/sh\n", "bin/dmesg": "#!/bin/sh\n",
	} {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		syscall.ForkLock.RLock() // a concurrent fork of another test would have the file open for writing, so that it could not be executed
		err := os.WriteFile(file, []byte(text), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "RUNTESTS=1", "CI=", "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH")), env...)
	return cmd
}

// TestGreenIsWhatEveryJobSaid: a job without output fails. A run also fails if a test was skipped and is not listed, or is listed and was
// not skipped. Failed tests run again, alone: a second failure fails the run, a success is listed as flaky.
func TestGreenIsWhatEveryJobSaid(t *testing.T) {
	for name, c := range map[string]struct {
		kind, unit, skips string
		exit              int
		says              []string
	}{
		"good":  {"good", "", "", 0, []string{"] done\n"}},
		"fails": {"fails", "", "", 1, []string{"again: cluster-nodehealth: test/nodehealth TestDaemon\n", "FAILED:", "--- FAIL: TestDaemon"}},
		"dies":  {"dies", "", "", 1, []string{"FAILED:", "agents ended with signal: killed"}},
		"listed": {"skips", "", "left TestLeft: it cannot be\npython tests.test_left.Left.test_left: nor that\n", 0,
			[]string{"] done\n"}},
		"unlisted": {"skips", "", "left TestLeft: it cannot be\n", 1, []string{"skipped, not listed: python tests.test_left.Left.test_left"}},
		"not left": {"good", "", "left TestLeft: it cannot be\n", 1, []string{"listed, not skipped: left TestLeft"}},
		"green then": {"flakes", slowLog, "", 0, []string{
			"again: unit: a/slow TestSlow\n", "\nFLAKY unit a/slow TestSlow: slow_test.go:12: the last word\n", "again: agents:  \n",
			"\nFLAKY agents: make --no-print-directory agents ended with signal: killed\n",
		}},
		"red again":    {"again", slowLog, "", 1, []string{"again: unit: a/slow TestSlow\n", "FAILED:", "--- FAIL: TestSlow"}},
		"four of them": {"again", strings.Repeat(slowLog, 4), "", 1, []string{"more than 3 are no flakes", "FAILED:", "--- FAIL: TestSlow"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := command(t, "CASE="+c.kind, "UNIT="+c.unit, "SKIPS="+c.skips)
			out, _ := cmd.CombinedOutput()
			text := string(out)
			for _, job := range []string{"unit", "agents", "nodehealth"} {
				log, _ := os.ReadFile(filepath.Join(cmd.Dir, logs, job))
				text += string(log)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d", code, c.exit)
			}
			for _, words := range c.says {
				if !strings.Contains(text, words) {
					t.Errorf("%q is not said", words)
				}
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}

// TestWhateverIsEndedEndsAll: if a job is killed, its processes end and the other jobs go on. If runtests is ended, all jobs end and no
// other job starts.
func TestWhateverIsEndedEndsAll(t *testing.T) {
	for name, c := range map[string]struct {
		exit     int
		launched bool // the last job
	}{"job": {1, true}, "main": {130, false}} {
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
			cmd := command(t, "CASE="+name, "SAID="+said)
			out := &bytes.Buffer{}
			cmd.Stdout, cmd.Stderr = out, out // a pipe, which stays open while a process lives
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(fifo)
			if name == "main" {
				for begun := 0; begun < 2 && lines.Scan(); {
					if slices.Contains([]string{"python-unit", "fmt"}, lines.Text()) {
						begun++
					}
				}
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != c.exit {
				t.Errorf("exit code %d, want %d:\n%s", code, c.exit, out)
			}
			_, _ = fifo.WriteString("END\n")
			launched := false
			for lines.Scan() && lines.Text() != "END" {
				launched = launched || lines.Text() == "launchers"
			}
			if launched != c.launched {
				t.Errorf("the last job was begun: %v, want %v:\n%s", launched, c.launched, out)
			}
		})
	}
}

// TestCIIsNotLeftOut: with CI set, runtests refuses a machine that cannot run clusters, before it starts anything.
func TestCIIsNotLeftOut(t *testing.T) {
	for _, c := range []struct {
		system string
		uid    int
		want   int
	}{{"linux", 0, 0}, {"linux", 1000, 1}, {"darwin", 501, 2}} {
		if cluster, left := machine(c.system, c.uid); cluster != (c.want == 0) || len(left) != c.want {
			t.Errorf("%s as %d: clusters %v, left out %q", c.system, c.uid, cluster, left)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	cmd := command(t, "CASE=good", "CI=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := os.Chmod(filepath.Dir(cmd.Dir), 0o755); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = filepath.Join(cmd.Dir, "runtests")
	if err := os.WriteFile(cmd.Path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "end-to-end tests on real kubelets: they need root") {
		t.Errorf("exit code %d:\n%s", cmd.ProcessState.ExitCode(), out)
	}
}

// TestFailed reads the names of failed tests from logs.
func TestFailed(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want []string
	}{
		"a test":      {slowLog, []string{"j a/slow TestSlow: slow_test.go:12: the last word"}},
		"a time-out":  {"=== RUN   TestA\npanic: test timed out after 30m0s\nFAIL\tholdfast.dev/holdfast/a\t1s\n" + slowLog, []string{"j a: panic: test timed out after 30m0s", "j a/slow TestSlow: slow_test.go:12: the last word"}},
		"a build":     {"FAIL\tholdfast.dev/holdfast/a [build failed]\n", []string{"j a: FAIL\tholdfast.dev/holdfast/a [build failed]"}},
		"no test":     {"make: *** Error 2\n", []string{"j: make: *** Error 2"}},
		"nothing":     {"", []string{"j: "}},
		"subtests":    {"FAIL: test_a (tests.test_a.A.test_a) (n=1)\n-----\nTraceback:\nAssertionError: 1 != 2\n\n======\nFAIL: test_a (tests.test_a.A.test_a) (n=2)\n-----\nAssertionError: 2 != 3\n\n-----\nRan 3 tests in 1s\n", []string{"j python tests.test_a.A.test_a: AssertionError: 1 != 2"}},
		"a class":     {"ERROR: setUpClass (tests.test_a.A)\n-----\nOSError: no\n\nRan 0 tests\n", []string{"j python tests.test_a.A: OSError: no"}},
		"in parallel": {"=== CONT  TestA\n=== NAME  TestB\n    b_test.go:1: of b\n=== NAME  TestA\n    a_test.go:2: of a\n--- FAIL: TestB (1s)\n--- FAIL: TestA (1s)\nFAIL\nFAIL\tholdfast.dev/holdfast/p\t1s\n", []string{"j p TestB: b_test.go:1: of b", "j p TestA: a_test.go:2: of a"}},
	} {
		var got []string
		for _, f := range failed(job{name: "j"}, c.log) {
			got = append(got, f.String()+": "+f.said)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestNext plays a run in which a job takes as long as its name says, on a cluster five times as long, and checks which job starts beside
// which.
func TestNext(t *testing.T) {
	const checks = "python-unit fmt vet | lint unit | unit-cores unit-kubernetes | "
	for width, want := range map[int]string{
		1: checks + "e2e | replace | scheduling | nodehealth | kills | agents | launchers",
		2: checks + "e2e | scheduling | replace | nodehealth | kills | agents | launchers",
	} {
		waiting, running := plan([]string{"e2e", "replace", "scheduling", "nodehealth"}), []job{}
		left := map[string]int{}
		said := ""
		for len(waiting)+len(running) > 0 {
			for i := next(waiting, running, 2, width, false); i >= 0; i = next(waiting, running, 2, width, false) {
				j := waiting[i]
				waiting, running = slices.Delete(waiting, i, i+1), append(running, j)
				left[j.name], said = len(j.name), said+j.name+" "
				if j.kind > unit {
					left[j.name] *= 5
				}
			}
			said += "| "
			shortest := slices.MinFunc(running, func(a, b job) int { return left[a.name] - left[b.name] })
			took := left[shortest.name]
			running = slices.DeleteFunc(running, func(j job) bool {
				left[j.name] -= took
				return left[j.name] == 0
			})
		}
		fields := strings.FieldsFunc(said, func(r rune) bool { return r == '|' })
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		said = strings.Join(slices.DeleteFunc(fields, func(s string) bool { return s == "" }), " | ")
		if said != want {
			t.Errorf("width %d:\n%s\nwant\n%s", width, said, want)
		}
	}
}

// TestBusy: a test on a cluster starts beside another, but not beside one while the machine is busy, nor beside a waiting check.
func TestBusy(t *testing.T) {
	all := plan([]string{"e2e", "replace", "scheduling"})
	named := func(names ...string) (jobs []job) {
		for _, name := range names {
			jobs = append(jobs, all[slices.IndexFunc(all, func(j job) bool { return j.name == name })])
		}
		return jobs
	}
	const calm = "some avg10=99.00 avg60=79.99 avg300=91.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	pressed := strings.Replace(calm, "79.99", "80.10", 1)
	for _, c := range []struct {
		waiting, running []job
		pressure         string
		want             int
	}{
		{named("replace", "scheduling"), named("e2e"), calm, 1},
		{named("replace", "scheduling"), named("e2e"), "", 1},
		{named("replace", "scheduling"), named("e2e"), pressed, -1},
		{named("replace", "scheduling"), nil, pressed, 0},
		{named("unit", "e2e"), named("lint"), pressed, 0},
		{named("unit", "e2e"), named("lint", "vet", "fmt"), calm, -1},
	} {
		if got := next(c.waiting, c.running, 2, 2, busy(c.pressure)); got != c.want {
			t.Errorf("%v wait, %v run, pressure %q: %d, want %d", c.waiting, c.running, c.pressure, got, c.want)
		}
	}
}

// TestWidth: a job with a cluster needs 4 GiB and one core; 3 GiB are reserved.
func TestWidth(t *testing.T) {
	for _, c := range []struct {
		gib         float64
		cores, want int
	}{{0, 2, 1}, {10.9, 2, 1}, {11.4, 2, 2}, {15, 2, 2}, {23.5, 2, 2}, {64, 8, 3}} {
		if got := width(c.gib, c.cores); got != c.want {
			t.Errorf("%v GiB, %d cores: %d at a time, want %d", c.gib, c.cores, got, c.want)
		}
	}
}

// TestShown: of the output of unit tests only that of failed packages is printed.
func TestShown(t *testing.T) {
	for name, want := range map[string]int{"unit": 6, "e2e": 7} {
		show, n := shown(job{name: name}), 0
		for line := range strings.Lines(slowLog) {
			n += len(show(strings.TrimSuffix(line, "\n")))
		}
		if n != want {
			t.Errorf("%s: %d lines, want %d", name, n, want)
		}
	}
}
