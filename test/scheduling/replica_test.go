package scheduling

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
)

// replica is one scheduler. A process of it that ends is started again after a pause, as by its Deployment. A scheduler that loses its
// lease ends, and on a busy machine an API server may stall for longer than a lease.
type replica struct {
	program       string
	args          []string
	port, preview int
	// pause is the wait before the first restart; it doubles with each restart.
	pause time.Duration
	stop  chan struct{}
	ended chan struct{}

	mu  sync.Mutex
	cmd *exec.Cmd
	log bytes.Buffer
}

// maxRestarts is how often a replica may end by itself. More restarts are a crash loop.
const maxRestarts = 5

// crash matches the output of a crashed process.
var crash = regexp.MustCompile(`(?m)^(panic|fatal error): .*|Observed a panic.*`)

// judge is the part of *testing.T by which a replica fails.
type judge interface {
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// launch starts the first process; kill ends the last one.
func (r *replica) launch(t judge) error {
	r.stop, r.ended = make(chan struct{}), make(chan struct{})
	if err := r.process(); err != nil {
		return err
	}
	go r.keep(t)
	return nil
}

// process starts a process unless the replica was killed.
func (r *replica) process() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.stop:
		return nil
	default:
	}
	r.cmd = exec.Command(r.program, r.args...)
	r.cmd.Stdout, r.cmd.Stderr = r, r
	return r.cmd.Start()
}

func (r *replica) keep(t judge) {
	defer close(r.ended)
	pause := r.pause
	for restarts := 0; ; restarts++ {
		err := r.cmd.Wait()
		select {
		case <-r.stop:
			return
		default:
		}
		if why := crash.FindString(r.said()); why != "" {
			t.Errorf("the replica on port %d crashed: %s", r.port, why)
			return
		}
		if restarts == maxRestarts {
			t.Errorf("the replica on port %d ended for the %dth time: %v", r.port, restarts+1, err)
			return
		}
		t.Logf("the replica on port %d ended by itself, %v, and is started again in %v", r.port, err, pause)
		select {
		case <-r.stop:
			return
		case <-time.After(pause):
		}
		pause *= 2
		if err := r.process(); err != nil {
			t.Errorf("starting the replica on port %d again: %v", r.port, err)
			return
		}
	}
}

// kill ends the replica for good.
func (r *replica) kill() {
	r.mu.Lock()
	select {
	case <-r.stop:
	default:
		close(r.stop)
	}
	_ = r.cmd.Process.Kill()
	r.mu.Unlock()
	<-r.ended
}

// Write records the processes' output.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *replica) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// verdicts collects the failures of a replica.
type verdicts struct {
	mu     sync.Mutex
	errors []string
}

func (v *verdicts) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errors = append(v.errors, fmt.Sprintf(format, args...))
}

func (*verdicts) Logf(string, ...any) {}

// TestReplicaIsKept: a replica that ends by itself is restarted, a limited number of times. After a crash it is not restarted.
func TestReplicaIsKept(t *testing.T) {
	for _, c := range []struct {
		name, script string
		error        string // empty: the replica runs until it is killed
		processes    int
	}{
		{"loses its lease twice", `[ $(wc -l <$0.begun) -ge 3 ] && exec sleep 300; echo leaderelection lost; exit 1`, "", 3},
		{"ends again and again", `exit 1`, fmt.Sprintf("ended for the %dth time", maxRestarts+1), maxRestarts + 1},
		{"crashes", `echo 'panic: nil map'; exit 2`, "crashed: panic: nil map", 1},
		{"is killed", `exec sleep 300`, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "scheduler")
			if err := os.WriteFile(file, []byte("echo >>$0.begun\n"+c.script+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			begun := func() int {
				text, _ := os.ReadFile(file + ".begun")
				return strings.Count(string(text), "\n")
			}
			v := &verdicts{}
			r := &replica{program: "/bin/sh", args: []string{file}, pause: time.Millisecond}
			if err := r.launch(v); err != nil {
				t.Fatal(err)
			}
			if c.error != "" {
				<-r.ended
			}
			eventually.Holds(t, fmt.Sprint(c.processes, " processes"), func() (bool, any) { n := begun(); return n >= c.processes, n })
			r.kill()
			r.kill() // the cleanup of a test kills the replica again
			if got := strings.Join(v.errors, "; "); got != c.error && (c.error == "" || !strings.Contains(got, c.error)) || begun() != c.processes {
				t.Errorf("%d processes and errors %q, not %d and %q", begun(), got, c.processes, c.error)
			}
		})
	}
}
