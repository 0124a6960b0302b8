//go:build linux

package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// indexWait is the longest that a manifest waits for its index.
	indexWait = time.Minute
	maxSaid   = 4 << 10
)

// Index starts a process that writes stock torch's index of a step's rank files, and returns its output. Reading it succeeds only if the
// process does; otherwise the error explains why there is no index. The process has the highest OOM score of the pod.
func Index(cmd *exec.Cmd) (io.ReadCloser, error) { return indexWithin(cmd, indexWait) }

func indexWithin(cmd *exec.Cmd, within time.Duration) (io.ReadCloser, error) {
	p := &index{cmd: cmd, within: within}
	out, err := cmd.StdoutPipe()
	cmd.Stderr, cmd.WaitDelay = &p.said, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting the process that names its parts: %w", err)
	}
	p.out, p.late = out, time.AfterFunc(within, p.kill)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("1000"), 0) // may have ended
	return p, nil
}

type index struct {
	cmd    *exec.Cmd
	out    io.Reader
	within time.Duration
	late   *time.Timer
	said   head
	end    error // io.EOF: the process has succeeded
}

func (p *index) Read(b []byte) (int, error) {
	n, err := 0, p.end
	if err == nil {
		n, err = p.out.Read(b)
	}
	if errors.Is(err, io.EOF) && p.end == nil {
		err = p.wait()
		p.end = err
	}
	return n, err
}

// wait returns io.EOF if the process has succeeded.
func (p *index) wait() error {
	err := p.cmd.Wait()
	switch text := strings.TrimSpace(p.said.String()); {
	case !p.late.Stop():
		return fmt.Errorf("naming its parts took longer than %s", p.within)
	case err == nil:
		return io.EOF
	case text != "":
		return errors.New(text)
	}
	return fmt.Errorf("the process that names its parts needs more memory or processor than it may have, or was killed: %w", err)
}

// kill ends the process and its children, which may hold its output open.
func (p *index) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// Close ends the process.
func (p *index) Close() error {
	if p.end == nil {
		p.kill()
		p.end = p.wait()
	}
	return nil
}

// head stores the beginning of what is written to it.
type head struct{ strings.Builder }

func (h *head) Write(b []byte) (int, error) {
	_, _ = h.Builder.Write(b[:min(len(b), maxSaid-h.Len())])
	return len(b), nil
}
