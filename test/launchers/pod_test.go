//go:build linux

package launchers

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

// agent is the real binary, built once.
var agent string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-launchers")
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

// venv has the launchers and frameworks; demo has PyTorch alone.
const (
	venv = "/opt/holdfast-launchers"
	demo = "/opt/holdfast-python/venv"
)

func python(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(venv, "bin", "python3")
	if _, err := os.Stat(filepath.Join(venv, ".ready")); err != nil {
		t.Skipf("SKIPPED: there is no %s: hack/launchers.sh makes it", venv)
	}
	return bin
}

// patience is far more than anything takes on a busy machine.
const patience = 8 * time.Minute

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

// environment is what scripts see with and without agents.
func environment(dir string, more ...string) []string {
	return append([]string{
		"PATH=" + venv + "/bin:/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "PYTHONDONTWRITEBYTECODE=1", "GLOO_SOCKET_IFNAME=lo", "HF_HUB_OFFLINE=1",
		"TOKENIZERS_PARALLELISM=false", "CUDA_HOME=/nowhere", "DS_ACCELERATOR=cpu", "TMPDIR=" + dir,
	}, more...)
}

// pod is a training container without the container: init, agent, launcher, ranks.
type pod struct {
	name, dir, root string
	cmd             *exec.Cmd
	out, errs       lockedBuffer
	ended           chan struct{}
}

// startPod starts a container that runs the command in dir.
func startPod(t *testing.T, c *coordtest.Coordinator, name, dir string, env []string, command ...string) *pod {
	t.Helper()
	top, err := os.MkdirTemp("", "hfl") // short: a socket's path ends at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{name: name, dir: dir, root: filepath.Join(top, "h"), ended: make(chan struct{})}
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
	p.cmd = exec.Command(filepath.Join(p.root, "bin", "holdfast-agent"), append([]string{"init", "--"}, command...)...)
	p.cmd.Dir = dir
	p.cmd.Env = append(environment(dir, env...), "HOLDFAST_ROOT="+p.root, "HOLDFAST_POD_IP=127.0.0.1", "HOLDFAST_COORDINATOR="+c.Address(),
		"HOLDFAST_COORDINATOR_CA="+c.CA, "HOLDFAST_POD_UID=uid-"+name, "HOLDFAST_GRACE_SECONDS=5")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its exit code is asked for later
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.killAll()
		<-p.ended
		if t.Failed() {
			out, errs := p.out.String(), p.errs.String()
			t.Logf("pod %s wrote, at the end:\n%s\n--- and on standard error:\n%s", name, out[max(0, len(out)-3000):], errs[max(0, len(errs)-6000):])
		}
		os.RemoveAll(top)
	})
	return p
}

// wait returns the container's exit code.
func (p *pod) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("pod %s did not end within %s; it runs %v", p.name, patience, p.processes())
	}
	return p.cmd.ProcessState.ExitCode()
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
	_ = p.cmd.Process.Kill()
	for range 20 {
		left := p.processes()
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) == 0 {
			return
		}
	}
}

// agentPID is the agent's process.
func (p *pod) agentPID(t *testing.T) int {
	t.Helper()
	for pid, cmd := range p.processes() {
		if strings.HasSuffix(cmd, "holdfast-agent run") {
			return pid
		}
	}
	t.Fatalf("no agent among %v", p.processes())
	return 0
}

// plain runs a command as it would be without us.
func plain(t *testing.T, dir string, env []string, command ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs lockedBuffer
	cmd := exec.Command(command[0], command[1:]...)
	if file, err := lookPath(command[0]); err == nil {
		cmd.Path, cmd.Err = file, nil
	}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment(dir, env...), &out, &errs
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := cmd.Start()
	if err == nil {
		timer := time.AfterFunc(patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		err = cmd.Wait()
		timer.Stop()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", command, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// lookPath finds a program where scripts find it.
func lookPath(name string) (string, error) {
	file := filepath.Join(venv, "bin", name)
	_, err := os.Stat(file)
	return file, err
}
