//go:build linux

package launchers

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// venv has the launchers and frameworks; demo has only PyTorch.
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

// environment is the scripts' environment with and without agents.
func environment(dir string, more ...string) []string {
	return append([]string{
		"PATH=" + venv + "/bin:/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "PYTHONDONTWRITEBYTECODE=1", "GLOO_SOCKET_IFNAME=lo", "HF_HUB_OFFLINE=1",
		"TOKENIZERS_PARALLELISM=false", "CUDA_HOME=/nowhere", "DS_ACCELERATOR=cpu", "TMPDIR=" + dir,
	}, more...)
}

// startPod starts a container that runs the command in dir.
func startPod(t *testing.T, c *coordtest.Coordinator, name, dir string, env []string, command ...string) *proctest.Container {
	t.Helper()
	p := proctest.New(t, name)
	p.Dir = dir
	p.Coordinator(c.Address(), c.CA)
	p.Env["HOLDFAST_ROOT"], p.Env["HOLDFAST_GRACE_SECONDS"] = p.Root, "5"
	for _, kv := range environment(dir, env...) {
		name, value, _ := strings.Cut(kv, "=")
		p.Env[name] = value
	}
	p.Start(command...)
	return p
}

// plain runs a command without Holdfast.
func plain(t *testing.T, dir string, env []string, command ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	if file, err := lookPath(command[0]); err == nil {
		cmd.Path, cmd.Err = file, nil
	}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment(dir, env...), &out, &errs
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := cmd.Start()
	if err == nil {
		timer := time.AfterFunc(eventually.Timeout, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		err = cmd.Wait()
		timer.Stop()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", command, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// lookPath finds a program as the scripts do.
func lookPath(name string) (string, error) {
	file := filepath.Join(venv, "bin", name)
	_, err := os.Stat(file)
	return file, err
}
