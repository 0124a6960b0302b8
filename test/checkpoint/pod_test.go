//go:build linux

package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
)

// agent is the real binary, built once.
var agent string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-checkpoint")
	if err != nil {
		panic(err)
	}
	agent = filepath.Join(dir, "holdfast-agent")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", agent, "holdfast.dev/holdfast/cmd/holdfast-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building the agent: %v\n%s", err, out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// pod is a training container without the container: init, agent, launcher, ranks.
type pod struct {
	name, dir, root string
	env             []string
	command         []string
	lives           int
	cmd             *exec.Cmd
	out             lockedBuffer
	ended           chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startPod(t *testing.T, c *coordtest.Coordinator, name string, env map[string]string, command ...string) *pod {
	t.Helper()
	dir, err := os.MkdirTemp("", "hfc") // short: a socket's path ends at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{name: name, dir: dir, root: filepath.Join(dir, "h"), command: command}
	if out, err := exec.Command(agent, "install", p.root).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	for _, d := range []string{"memory", "token"} {
		if err := os.MkdirAll(filepath.Join(p.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.root, "token", "token"), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "HOLDFAST_ROOT=" + p.root, "HOLDFAST_POD_IP=127.0.0.1",
		"HOLDFAST_COORDINATOR=" + c.Address(), "HOLDFAST_COORDINATOR_CA=" + c.CA, "PYTHONDONTWRITEBYTECODE=1",
	}
	for k, v := range env {
		p.env = append(p.env, k+"="+v)
	}
	p.start(t)
	t.Cleanup(func() { p.end(t) })
	return p
}

// start starts the container; each start is that of another pod.
func (p *pod) start(t *testing.T) {
	t.Helper()
	p.lives++
	p.ended = make(chan struct{})
	p.cmd = exec.Command(filepath.Join(p.root, "bin", "holdfast-agent"), append([]string{"init", "--"}, p.command...)...)
	p.cmd.Dir = p.dir
	p.cmd.Env = append(slices.Clone(p.env), fmt.Sprintf("HOLDFAST_POD_UID=uid-%s-%d", p.name, p.lives))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = 10 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, p.ended
	go func() {
		_ = cmd.Wait() // its exit code is asked for later
		close(ended)
	}()
}

// lose is the end of the pod's node: everything ends at once, and memory is gone.
func (p *pod) lose(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Kill()
	for deadline := time.Now().Add(patience); ; {
		left := 0
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
			if err == nil && bytes.Contains(env, []byte("HOLDFAST_ROOT="+p.root+"\x00")) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes of pod %s do not end", left, p.name)
		}
	}
	<-p.ended
	for _, dir := range []string{"memory", "run"} {
		if err := os.RemoveAll(filepath.Join(p.root, dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(p.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// end shuts the pod down as a kubelet does, and says what it wrote if the test failed.
func (p *pod) end(t *testing.T) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		t.Errorf("pod %s did not end within 20 s of SIGTERM", p.name)
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	if t.Failed() {
		out := p.out.String()
		t.Logf("pod %s wrote, at the end:\n%s", p.name, out[max(0, len(out)-4000):])
	}
	os.RemoveAll(p.dir)
}

// agentPID is the agent's process, found by its parent and its command line.
func (p *pod) agentPID() (int, bool) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid)) // each thread has children of its own
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

// sealed reads a rank's arena as a stranger would.
func (p *pod) sealed(local int) []uint64 {
	f, err := os.Open(filepath.Join(p.root, "memory", fmt.Sprintf("rank-%d.arena", local)))
	if err != nil {
		return nil
	}
	defer f.Close()
	meta := make([]byte, format.MetaBytes)
	if _, err := f.ReadAt(meta, 0); err != nil {
		return nil
	}
	book, err := format.Open(meta)
	if err != nil {
		return nil
	}
	return book.Sealed()
}
