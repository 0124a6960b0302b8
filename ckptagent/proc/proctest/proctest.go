//go:build linux

// Package proctest runs init, the real agent and a user's command as processes of the test's machine, in place of a
// training container. When a test ends, the package ends all processes that it started, and prints their output if the
// test failed.
package proctest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
)

// agent is the real binary, which Main builds.
var agent string

// Main is TestMain of a package that starts containers: it builds the agent once for all of its tests. HOLDFAST_AGENT names another binary
// to test instead.
func Main(m *testing.M) {
	if agent = os.Getenv("HOLDFAST_AGENT"); agent != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "holdfast-agent")
	if err != nil {
		panic(err)
	}
	agent = filepath.Join(dir, "holdfast-agent")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", agent, "holdfast.dev/holdfast/cmd/holdfast-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(fmt.Sprintf("building the agent: %v", err))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// Agent returns the path of the real binary.
func Agent() string { return agent }

// Container is one training container, which may be started several times.
type Container struct {
	Name string
	// Root is where Holdfast is installed, Dir the command's working directory; Env is the container's environment.
	Root, Dir string
	Env       map[string]string
	// Within is a command that runs init, such as one that enters new namespaces.
	Within []string
	// Out and Errs are the output of all of its processes.
	Out, Errs *Output
	// Init is the init process of the newest start.
	Init *exec.Cmd

	t     testing.TB
	ended chan struct{}
}

// New installs Holdfast into the folders of a container, whose pod's token is its name.
func New(t testing.TB, name string) *Container {
	t.Helper()
	top, err := os.MkdirTemp("", "hf") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	c := &Container{Name: name, Root: filepath.Join(top, "h"), Dir: filepath.Join(top, "w"), Out: newOutput(), Errs: newOutput(), t: t}
	if out, err := exec.Command(agent, "install", c.Root).CombinedOutput(); err != nil {
		t.Fatalf("install: %v %s", err, out)
	}
	for _, d := range []string{c.Dir, filepath.Join(c.Root, "memory"), filepath.Join(c.Root, "token")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.File(filepath.Join(c.Root, "token", "token"), name)
	c.Env = map[string]string{"HOLDFAST_POD_IP": "127.0.0.1", "HOLDFAST_POD_UID": "uid-" + name}
	t.Cleanup(func() {
		if t.Failed() {
			for pid, cmd := range c.Processes() {
				stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				t.Logf("of pod %s there was: %.200s: %.60s", name, cmd, stat)
			}
		}
		c.Kill()
		if t.Failed() {
			t.Logf("pod %s wrote, at the end:\n%s\n--- and on standard error:\n%s", name, c.Out.tail(), c.Errs.tail())
		}
		os.RemoveAll(top)
	})
	return c
}

// Coordinator sets the coordinator's address; without it init execs the command.
func (c *Container) Coordinator(address, ca string) {
	c.Env["HOLDFAST_COORDINATOR"], c.Env["HOLDFAST_COORDINATOR_CA"] = address, ca
}

// File writes a file, in Dir unless the path is absolute.
func (c *Container) File(path, content string) {
	c.t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(c.Dir, path)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// Start starts the container's command, as the kubelet does.
func (c *Container) Start(command ...string) {
	c.t.Helper()
	argv := slices.Concat(c.Within, []string{filepath.Join(c.Root, "bin", "holdfast-agent"), "init", "--"}, command)
	init := exec.Command(argv[0], argv[1:]...)
	init.Dir = c.Dir
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		init.Env = append(init.Env, name+"="+c.Env[name])
	}
	init.Stdout, init.Stderr = c.Out, c.Errs
	init.WaitDelay = 10 * time.Second
	if err := init.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	c.Init, c.ended = init, ended
	go func() {
		_ = init.Wait() // the exit code is read later
		close(ended)
	}()
}

// Ended returns a channel that is closed once the container has ended.
func (c *Container) Ended() <-chan struct{} { return c.ended }

// Code returns the exit code of a container that has ended.
func (c *Container) Code() int { return c.Init.ProcessState.ExitCode() }

// Wait returns the container's exit code.
func (c *Container) Wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(eventually.Timeout):
		c.t.Fatalf("pod %s did not end within %s; it runs %v", c.Name, eventually.Timeout, c.Processes())
	}
	return c.Code()
}

// Processes returns the container's processes: pid to command line.
func (c *Container) Processes() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !c.Owns(pid) {
			continue
		}
		cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if len(cmd) > 0 { // else it has ended
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

// Owns reports whether a process is the container's: a pid from a file may have been reused.
func (c *Container) Owns(pid int) bool {
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return bytes.Contains(env, []byte("HOLDFAST_ROOT="+c.Root+"\x00"))
}

// Kill ends all processes at once: init and the agent first, so that they see none of the others die, as when a kernel ends a container.
func (c *Container) Kill() {
	if c.Init != nil {
		_ = c.Init.Process.Kill()
	}
	eventually.Holds(c.t, "the end of pod "+c.Name, func() (bool, any) {
		left := c.Processes()
		ours := func(pid int) bool {
			return strings.Contains(left[pid], "holdfast-agent init ") || strings.HasSuffix(left[pid], "holdfast-agent run")
		}
		next := slices.DeleteFunc(slices.Collect(maps.Keys(left)), func(pid int) bool { return !ours(pid) })
		if len(next) == 0 {
			next = slices.Collect(maps.Keys(left))
		}
		for _, pid := range next {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0, left
	})
	if c.ended != nil {
		<-c.ended
	}
}

// LookForAgent returns the pid of the agent; false while there is none.
func (c *Container) LookForAgent() (int, bool) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.Init.Process.Pid)) // children are listed per thread
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(children)) {
			line, err := os.ReadFile("/proc/" + child + "/cmdline")
			if err == nil && strings.HasSuffix(strings.TrimRight(string(line), "\x00"), "holdfast-agent\x00run") {
				pid, err := strconv.Atoi(child)
				return pid, err == nil
			}
		}
	}
	return 0, false
}

// AgentPID returns the pid of the agent, or fails the test.
func (c *Container) AgentPID() int {
	c.t.Helper()
	pid, ok := c.LookForAgent()
	if !ok {
		c.t.Fatalf("no agent among %v", c.Processes())
	}
	return pid
}
