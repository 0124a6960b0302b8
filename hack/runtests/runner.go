package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// endTimeout bounds the end of a command after SIGTERM: a cluster removes its mounts and links.
	endTimeout = time.Minute
	// outputTimeout bounds reading a command's output after its end: a process that it left in another session may hold the pipe open.
	outputTimeout = 5 * time.Second
	// pressureEvery is how often the runner asks whether the machine is still busy; a cluster that just began needs longer to show.
	pressureEvery = 20 * time.Second
)

// runner starts commands, each in its own process group, and prints their output.
type runner struct {
	began time.Time
	flaky []string

	mu  sync.Mutex
	out io.Writer       // guarded by mu
	ok  map[string]bool // passed jobs and repeated tests, by name; guarded by mu
}

func newRunner(out io.Writer) *runner {
	return &runner{began: time.Now(), out: out, ok: map[string]bool{}}
}

func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "\n== [%3ds] %s\n", int(time.Since(r.began).Seconds()), fmt.Sprintf(format, args...))
}

// step runs a command by itself and prints all its output.
func (r *runner) step(ctx context.Context, title string, command ...string) error {
	r.say("%s", title)
	if _, err := r.command(ctx, command, nil, func(line string) { fmt.Fprintln(r.out, line) }); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return nil
}

// command runs a command to its end and returns the processor time of it and its children. If ctx ends first, its group gets SIGTERM, and
// SIGKILL after endTimeout; processes left in the group at the end are killed. line receives its output, under r.mu.
func (r *runner) command(ctx context.Context, command, env []string, line func(string)) (time.Duration, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = write, write, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(err, read.Close(), write.Close())
	}
	_ = write.Close()
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for lines := bufio.NewReader(read); ; {
			text, err := lines.ReadString('\n')
			if text != "" {
				r.mu.Lock()
				line(strings.TrimSuffix(text, "\n"))
				r.mu.Unlock()
			}
			if err != nil {
				return
			}
		}
	}()
	over := make(chan struct{})
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-over:
		case <-time.After(endTimeout):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	}()
	err = cmd.Wait()
	if ctx.Err() != nil { // make ends before its children
		waitForGroup(cmd.Process.Pid, endTimeout)
	}
	close(over)
	<-asked
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-printed:
	case <-time.After(outputTimeout):
	}
	_ = read.Close()
	<-printed
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// waitForGroup waits until no process of the group is left, at most for limit.
func waitForGroup(group int, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && syscall.Kill(-group, 0) == nil; {
		time.Sleep(50 * time.Millisecond)
	}
}

// schedule runs all jobs, in parallel as next allows.
func (r *runner) schedule(ctx context.Context, jobs []job, cores, width int) {
	waiting, running := slices.Clone(jobs), []job{}
	over := make(chan job)
	pressure := time.NewTicker(pressureEvery)
	defer pressure.Stop()
	for {
		for ctx.Err() == nil {
			text, _ := os.ReadFile("/proc/pressure/cpu")
			i := next(waiting, running, cores, width, busy(string(text)))
			if i < 0 {
				break
			}
			j := waiting[i]
			waiting, running = slices.Delete(waiting, i, i+1), append(running, j)
			go func() { r.job(ctx, j, nil); over <- j }()
		}
		if len(running) == 0 {
			return
		}
		select {
		case ended := <-over:
			running = slices.DeleteFunc(running, func(j job) bool { return j == ended })
		case <-pressure.C:
		}
	}
}

// job runs one job: its whole output goes to its log, the lines of shown to r.out. again is the only test to run; nil: all.
func (r *runner) job(ctx context.Context, j job, again *failure) {
	name, env := j.name, []string{"KEPT=1"}
	if again != nil {
		name, env = again.String(), append(env, "AGAIN="+again.pkg+" "+again.test)
	}
	log, err := os.OpenFile(j.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		r.say("%s: FAILED: %v", name, err)
		return
	}
	defer log.Close()
	command := []string{"make", "--no-print-directory", j.verb}
	show := shown(j)
	began := time.Now()
	cost, err := r.command(ctx, command, env, func(line string) {
		fmt.Fprintln(log, line)
		for _, text := range show(line) {
			fmt.Fprintf(r.out, "%s: %s\n", j.name, text)
		}
	})
	how := "ok"
	if err != nil {
		how = "FAILED, " + err.Error() + ","
		fmt.Fprintf(log, "%s ended with %v\n", strings.Join(command, " "), err)
	}
	r.mu.Lock()
	r.ok[name] = err == nil
	r.mu.Unlock()
	r.say("%s: %s after %.0f s, %.0f s of a processor", name, how, time.Since(began).Seconds(), cost.Seconds())
}

// again runs each failed test once more, alone. A job passes if all its failed tests pass then.
func (r *runner) again(ctx context.Context, jobs []job) {
	var failures []failure
	for _, j := range jobs {
		if !r.ok[j.name] {
			log, _ := os.ReadFile(j.log())
			failures = append(failures, failed(j, string(log))...)
		}
	}
	if len(failures) > maxFlaky {
		r.say("%d tests failed: more than %d are no flakes, none runs again", len(failures), maxFlaky)
		return
	}
	green := map[job]bool{}
	for _, f := range failures {
		if ctx.Err() != nil {
			return
		}
		ok := false
		if f.job.kind != check { // which gives the same result for the same files
			r.job(ctx, f.job, &f)
			ok = r.ok[f.String()]
		}
		if ok {
			r.flaky = append(r.flaky, f.String()+": "+f.said)
		}
		before, tried := green[f.job]
		green[f.job] = ok && (before || !tried)
	}
	for j, ok := range green {
		r.ok[j.name] = ok
	}
}

// red reports the failed jobs, with the lines of their logs that name the failures; "" if there are none.
func (r *runner) red(jobs []job) string {
	text := ""
	for _, j := range jobs {
		if r.ok[j.name] {
			continue
		}
		text += fmt.Sprintf("\n  %s, whose output is in %s:", j.name, j.log())
		log, _ := os.ReadFile(j.log())
		for line := range strings.Lines(string(log)) {
			if telling.MatchString(line) {
				text += "\n    " + strings.TrimRight(line, "\n")
			}
		}
	}
	if text == "" {
		return ""
	}
	return "FAILED:" + text
}
