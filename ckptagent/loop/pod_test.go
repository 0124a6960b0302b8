//go:build linux

package loop_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// binary is the real agent, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-agent")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "holdfast-agent")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "holdfast.dev/holdfast/cmd/holdfast-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(fmt.Sprintf("building the agent: %v", err))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// patience is far more than anything takes on a busy machine.
const patience = 2 * time.Minute

// output collects what a container writes, as the kubelet would.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await waits until the output holds all of the texts.
func (o *output) await(t testing.TB, texts ...string) {
	t.Helper()
	o.until(t, func(have string) (missing string) {
		for _, text := range texts {
			if !strings.Contains(have, text) {
				missing = text
			}
		}
		return missing
	})
}

// lines waits until there are so many whole ones, and returns them.
func (o *output) lines(t testing.TB, n int) []string {
	t.Helper()
	var all []string
	o.until(t, func(have string) (missing string) {
		all = strings.Split(have, "\n")
		if all = all[:len(all)-1]; len(all) < n {
			missing = fmt.Sprintf("line %d", n)
		}
		return missing
	})
	return all
}

// until waits until nothing is missing.
func (o *output) until(t testing.TB, lacks func(have string) (missing string)) {
	t.Helper()
	deadline := time.After(patience)
	for {
		o.mu.Lock()
		have, changed := o.buf.String(), o.changed
		o.mu.Unlock()
		missing := lacks(have)
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no %q in the output within %s:\n%s", missing, patience, have)
		}
	}
}

// pod is a training container without the container: init, agent and the user's command.
type pod struct {
	t    testing.TB
	name string
	root string
	work string
	env  map[string]string
	out  *output
	errs *output
	init *exec.Cmd
}

func newPod(t testing.TB, c *coordtest.Coordinator, name string) *pod {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf") // short: a socket's path ends at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{t: t, name: name, root: filepath.Join(dir, "h"), work: filepath.Join(dir, "w"), out: &output{changed: make(chan struct{})}, errs: &output{changed: make(chan struct{})}}
	if out, err := exec.Command(binary, "install", p.root).CombinedOutput(); err != nil {
		t.Fatalf("install: %v %s", err, out)
	}
	for _, d := range []string{p.work, filepath.Join(p.root, "memory"), filepath.Join(p.root, "token")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.file(filepath.Join(p.root, "token", "token"), name)
	p.env = map[string]string{
		"PATH": pythonDir() + os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "HOLDFAST_POD_IP": "127.0.0.1", "HOLDFAST_POD_UID": "uid-" + name, "HOLDFAST_STANDBYS": "off",
	}
	if c != nil {
		p.env["HOLDFAST_COORDINATOR"], p.env["HOLDFAST_COORDINATOR_CA"] = c.Address(), c.CA
	}
	t.Cleanup(func() {
		if t.Failed() {
			for pid, cmd := range p.processes() {
				stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				t.Logf("of pod %s there was: %.200s: %.60s", name, cmd, stat)
			}
		}
		p.killAll()
		if t.Failed() {
			t.Logf("output of pod %s:\n%s%s", name, p.out, p.errs)
		}
		os.RemoveAll(dir)
	})
	return p
}

func (p *pod) file(path, content string) {
	p.t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.work, path)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// start starts the container's command, as the kubelet does.
func (p *pod) start(command ...string) {
	p.t.Helper()
	p.init = exec.Command(filepath.Join(p.root, "bin", "holdfast-agent"), append([]string{"init", "--"}, command...)...)
	p.init.Dir = p.work
	for k, v := range p.env {
		p.init.Env = append(p.init.Env, k+"="+v)
	}
	p.init.Stdout, p.init.Stderr = p.out, p.errs
	p.init.WaitDelay = 10 * time.Second
	if err := p.init.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the container's exit code.
func (p *pod) wait() int {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.init.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatalf("waiting for the container: %v", err)
		}
		return p.init.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("the container did not end within %s", patience)
		return -1
	}
}

// processes lists what belongs to the pod: pid to command line.
func (p *pod) processes() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if !bytes.Contains(env, []byte("HOLDFAST_ROOT="+p.root+"\x00")) {
			continue
		}
		cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if len(cmd) > 0 { // else it has ended
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

func (p *pod) killAll() {
	started := p.init != nil && p.init.Process != nil
	if started {
		_ = p.init.Process.Kill()
	}
	for range 10 {
		left := p.processes()
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) == 0 {
			break
		}
	}
	if started && p.init.ProcessState == nil {
		_ = p.init.Wait()
	}
}

// agent is the pid of the agent.
func (p *pod) agent() int {
	p.t.Helper()
	for pid, cmd := range p.processes() {
		if strings.HasSuffix(cmd, "holdfast-agent run") {
			return pid
		}
	}
	p.t.Fatalf("no agent among %v", p.processes())
	return 0
}

// pythonDir is the folder of the interpreter itself, followed by a colon: what stands on PATH may be a wrapper.
var pythonDir = sync.OnceValue(func() string {
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.dirname(sys.executable))").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out)) + ":"
})

func needPython(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH, and ranks are Python processes")
	}
}

func kill(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("sending signal %d to %d: %v", sig, pid, err)
	}
}
