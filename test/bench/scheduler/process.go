package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// timeout bounds every wait for a process.
const timeout = 90 * time.Second

// process is a child that ends with this program, however this program ends.
type process struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// start starts a program under another name (argv[0] selects the program of holdfast-dev).
func start(dir, name, binary string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(binary, args...)
	p.cmd.Args[0] = name
	p.cmd.Env = append(append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig")), env...) // the first is of Holdfast's controller
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w; build it with: make bench-scheduler", name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// cpu is the processor time of a stopped process.
func (p *process) cpu() time.Duration {
	s := p.cmd.ProcessState
	return s.UserTime() + s.SystemTime()
}

// used is the processor time of running processes, or of this program where nil.
func used(all ...*process) (total time.Duration, err error) {
	for _, p := range all {
		pid := os.Getpid()
		if p != nil {
			pid = p.cmd.Process.Pid
		}
		running, err := procfs.NewProc(pid)
		if err != nil {
			return 0, err
		}
		stat, err := running.Stat()
		if err != nil {
			return 0, err
		}
		total += time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return total, nil
}

// memory is the largest resident memory of a running process, in bytes. Rusage of an ended one has this program's if that is larger.
func (p *process) memory() (float64, error) {
	running, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	status, err := running.NewStatus()
	return float64(status.VmHWM), err
}

// until retries check until it returns no error; it fails if the process ends meanwhile.
func (p *process) until(ctx context.Context, check func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended at once: %s", p.name, p.tail())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: %w: %s", p.name, err, p.tail())
		}
	}
}

// tail is the end of the log.
func (p *process) tail() string {
	const most = 600
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// insecure connects to children of this program on the loopback, which create certificates at each start.
var insecure = &http.Client{
	Timeout:   time.Minute,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
} //nolint:gosec // see above

// get fetches a path from a child.
func get(ctx context.Context, port int, path string) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return nil, err
	}
	r, err := insecure.Do(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s: %.300s", path, r.Status, text)
	}
	return text, err
}

// ports returns free ports on the loopback.
func ports(n int) ([]int, error) {
	all := make([]int, n)
	for i := range all {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			all[i] = addr.Port
		}
	}
	return all, nil
}
