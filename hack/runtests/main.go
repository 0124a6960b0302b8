// Command runtests is `make test`: it runs all checks of the project. Checks that the machine cannot run are skipped
// and listed at the end. If the variable CI is set, runtests refuses a machine that cannot run all checks.
//
// First runtests builds all binaries, also those of tests, because a compiler beside a cluster would use CPU time that
// the cluster's tests need. Then several jobs run at once, checks before clusters; each job is a target of the Makefile
// (see plan). Each line of output begins with the name of a job. The folder .cache/test/ has the whole output of each job.
//
// At the end it runs each failed test once more, alone. A test that fails again is a failure. A test that then passes
// is listed as FLAKY; more than three such tests are a failure. A skipped test must be in hack/skips.txt, and a test in
// hack/skips.txt must be skipped. When runtests ends for any reason, also by Ctrl-C, it ends all processes that it
// started.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	logs     = ".cache/test"
	maxFlaky = 3
	// As in the Makefile.
	python = "/opt/holdfast-python/venv/bin/python3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	switch {
	case ctx.Err() != nil:
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cluster, leftOut := machine(runtime.GOOS, os.Getuid())
	if !cluster && os.Getenv("CI") != "" {
		return fmt.Errorf("CI is set, and this machine leaves out %s", strings.Join(leftOut, "; "))
	}
	if err := os.RemoveAll(logs); err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	r := newRunner(os.Stdout)
	var failed error
	if cluster {
		failed = r.step(ctx, "machine: check and install what is missing; make build beside it", "hack/ready.sh")
	}
	if failed == nil {
		if _, err := exec.LookPath("protoc"); err != nil {
			leftOut = append(leftOut, "make verify: protoc is not installed")
		} else { // alone: it writes Go files
			failed = r.step(ctx, "make verify: generated files", "make", "--no-print-directory", "verify")
		}
	}
	if failed != nil {
		return failed
	}
	if cluster {
		failed = r.all(ctx)
	} else {
		failed = r.withoutCluster(ctx, &leftOut)
	}
	if failed != nil {
		return failed
	}
	r.say("done")
	for _, flake := range r.flaky {
		fmt.Fprintln(r.out, "FLAKY", flake)
	}
	if len(leftOut) > 0 {
		bar := strings.Repeat("*", 60)
		fmt.Fprintf(r.out, "\n%s\nLEFT OUT on this machine:\n  - %s\n%s\n", bar, strings.Join(leftOut, "\n  - "), bar)
	}
	return nil
}

// machine: whether clusters can run here, and what is skipped if they cannot.
func machine(system string, uid int) (cluster bool, leftOut []string) {
	const what = "end-to-end tests on real kubelets: they need "
	if system != "linux" {
		leftOut = append(leftOut, what+"Linux")
	}
	if uid != 0 {
		leftOut = append(leftOut, what+"root")
	}
	return len(leftOut) == 0, leftOut
}

// all runs every job, runs failed tests once more, and reports the failures.
func (r *runner) all(ctx context.Context) error {
	build := []string{"make", "--no-print-directory", "-j2", "test-binaries", "launchers-venv", "short-peers"}
	if err := r.step(ctx, "make test-binaries launchers-venv short-peers", build...); err != nil {
		return err
	}
	names, err := exec.CommandContext(ctx, "make", "-s", "--no-print-directory", "cluster-tests").Output()
	clusters := strings.Fields(string(names))
	if err != nil || len(clusters) < 3 {
		return fmt.Errorf("make cluster-tests names too few tests: %q, %w", clusters, err)
	}
	jobs := plan(clusters)
	width := width(memoryGiB(), runtime.NumCPU())
	r.say("checks and unit tests, then tests on real parts, up to %d at a time: API server, kubelets, containerd, PyTorch", width)
	began := time.Now()
	r.schedule(ctx, jobs, runtime.NumCPU(), width)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.again(ctx, jobs)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if red := r.red(jobs); red != "" {
		return fmt.Errorf("%s%s", red, killedForMemory(began))
	}
	return r.unlistedSkips(jobs)
}

// withoutCluster runs what needs neither Linux nor root.
func (r *runner) withoutCluster(ctx context.Context, leftOut *[]string) error {
	verbs := []string{"check"}
	interpreter := python
	_, err := exec.LookPath("python3")
	switch {
	case runtime.GOOS != "linux":
		*leftOut = append(*leftOut, "make kills: it needs Linux")
	case err != nil:
		*leftOut = append(*leftOut, "make kills: python3 is not installed")
	default:
		verbs = append(verbs, "launchers", "kills")
		if !hasTorch(interpreter) {
			*leftOut = append(*leftOut, "kills of trainers with PyTorch: "+interpreter+" has none")
		}
	}
	if _, err := os.Stat(interpreter); err != nil {
		interpreter = "python3"
	}
	if !hasTorch(interpreter) {
		*leftOut = append(*leftOut, "Python tests that need PyTorch: "+interpreter+" has none")
	}
	for _, verb := range verbs {
		if err := r.step(ctx, "make "+verb, "make", "--no-print-directory", verb); err != nil {
			return err
		}
	}
	return nil
}

// hasTorch looks for torch without importing it, which takes seconds.
func hasTorch(interpreter string) bool {
	const find = `import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)`
	return exec.Command(interpreter, "-c", find).Run() == nil
}

// unlistedSkips compares the tests that were skipped with hack/skips.txt.
func (r *runner) unlistedSkips(jobs []job) error {
	list, err := os.ReadFile("hack/skips.txt")
	if err != nil {
		return err
	}
	var listed, were []string
	for line := range strings.Lines(string(list)) {
		if name, _, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			listed = append(listed, name)
		}
	}
	for _, j := range jobs {
		log, _ := os.ReadFile(j.log())
		were = append(were, skipped(string(log))...)
	}
	var wrong []string
	for _, name := range listed {
		if !slices.Contains(were, name) {
			wrong = append(wrong, "  listed, not skipped: "+name)
		}
	}
	for _, name := range were {
		if !slices.Contains(listed, name) {
			wrong = append(wrong, "  skipped, not listed: "+name)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("FAILED: skipped tests and hack/skips.txt differ:\n%s", strings.Join(slices.Compact(wrong), "\n"))
}

// killedForMemory returns the kernel's lines since began about killed processes; such a process prints nothing itself.
func killedForMemory(began time.Time) string {
	out, _ := exec.Command("dmesg", "--since", began.Format(time.DateTime)).Output()
	killed := ""
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "Out of memory: Killed") {
			killed += "\n" + strings.TrimSpace(line)
		}
	}
	return killed
}
