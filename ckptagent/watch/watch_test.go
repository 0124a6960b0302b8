//go:build linux

package watch

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// run starts a program in a session of its own.
func run(t *testing.T, argv ...string) proc.Process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); <-ended })
	p, ok := proc.Find(cmd.Process.Pid)
	if !ok {
		t.Fatal("the process that was started does not live")
	}
	return p
}

// TestAProcessThatIsNoPython: its page may claim anything; a process that does not handle the signal is sent none, and is not asked.
func TestAProcessThatIsNoPython(t *testing.T) {
	sleep := run(t, "sleep", "600")
	eventually.Holds(t, "it sleeps", func() (bool, any) {
		state := proc.Snap().State(sleep.PID)
		return state == 'S', state
	})
	claim := func(pid int, start uint64) page.Page {
		return page.Page{PID: pid, Start: start, Signal: int(syscall.SIGUSR1)}
	}
	files := filepath.Join(t.TempDir(), "looks")
	l, err := net.Listen("unix", files+".sock")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if c, err := l.Accept(); err == nil {
			c.Close()
			t.Error("its server was asked")
		}
	}()
	defer func() { l.Close(); <-asked }()
	for name, p := range map[string]page.Page{
		"no page":                 {},
		"it handles the signal":   claim(sleep.PID, sleep.Start),
		"another start":           claim(sleep.PID, sleep.Start+1),
		"another process":         claim(os.Getpid(), 1),
		"init":                    claim(1, 1),
		"a signal there is not":   {PID: sleep.PID, Start: sleep.Start, Signal: 65},
		"one that none can catch": {PID: sleep.PID, Start: sleep.Start, Signal: int(syscall.SIGKILL)},
	} {
		looks := New().Look([]Rank{{Local: 3, Process: sleep, Page: p, Files: files}}, 8)
		if len(looks) != 1 {
			t.Fatalf("%s: %d looks", name, len(looks))
		}
		l := looks[0]
		if l.Local != 3 || l.PID != sleep.PID || l.State != 'S' || l.Processes != 1 || l.Native == "" {
			t.Errorf("%s: %+v", name, l)
		}
		if l.Stack != protocol.StackNone || l.Groups != nil {
			t.Errorf("%s: it was asked: %+v", name, l)
		}
	}
	if !sleep.Alive() {
		t.Fatal("a look has ended it")
	}
}

// TestAFamily: children, grandchildren that have left the session, and what ended children have used.
func TestAFamily(t *testing.T) {
	shell := run(t, "bash", "-c", "for i in {1..100000}; do :; done & wait; setsid sleep 600 & sleep 600; true")
	w := New()
	var l protocol.Look
	eventually.Holds(t, "the shell and its two children are seen", func() (bool, any) {
		looks := w.Look([]Rank{{Process: shell}}, 1)
		if len(looks) == 1 {
			l = looks[0]
		}
		return l.Processes >= 3 && l.CPU > 20*time.Millisecond, l
	})
	if again := w.Look([]Rank{{Process: shell}}, 1)[0]; again.CPU < l.CPU || again.IO < l.IO {
		t.Errorf("it falls: %+v, then %+v", l, again)
	}
	_ = syscall.Kill(-shell.PID, syscall.SIGKILL)
	eventually.Holds(t, "no look is reported of a rank that has ended", func() (bool, any) {
		looks := w.Look([]Rank{{Process: shell}}, 1)
		return len(looks) == 0 && len(w.costs) == 0, looks
	})
}

// TestAServerThatDoesNotAnswer: one that takes the question and is silent, one that never ends its answer.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"endless": func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n{\"entries\":["))
			for {
				if _, err := c.Write([]byte(op(1, 0, 1, 0, 1, "gloo:barrier", "scheduled", "") + ",")); err != nil {
					return
				}
			}
		},
		"no HTTP": func(c net.Conn) { _, _ = c.Write([]byte("hello")); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go serve(c)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if got, err := newRecorder(socket, nil, 8).looks(ctx); err == nil || got != nil {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// TestFilesThatAreNotTheRanksOwn are neither emptied nor read.
func TestFilesThatAreNotTheRanksOwn(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(name string, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	for _, name := range []string{
		at("link", os.Symlink(kept, filepath.Join(dir, "link"))),
		at("hard", os.Link(kept, filepath.Join(dir, "hard"))),
		at("fifo", syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)),
		at("none", nil),
		dir,
	} {
		if f, err := openOwned(name, os.Getpid()); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		}
	}
	if raw, _ := os.ReadFile(kept); string(raw) != "content" {
		t.Errorf("the file has %q", raw)
	}
	if os.Geteuid() == 0 {
		if err := os.Remove(filepath.Join(dir, "hard")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(kept, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if f, err := openOwned(kept, os.Getpid()); err == nil {
			f.Close()
			t.Error("another user's file was opened")
		}
	}
}

// TestAPhase: a phase is that of the process which opened it, and ends with it.
func TestAPhase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page")
	if err := page.Prepare(path); err != nil {
		t.Fatal(err)
	}
	const script = `
import sys, time, _holdfast_page
_holdfast_page.enter(sys.argv[1])
import holdfast
holdfast.attach().phase("evaluation", up_to=1200)
time.sleep(600)
`
	t.Setenv("PYTHONPATH", "../python")
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	rank := run(t, "python3", "-c", script, path)
	var of page.Page
	eventually.Holds(t, "the phase is looked at", func() (bool, any) {
		of, _ = page.Read(path)
		looks := New().Look([]Rank{{Process: rank, Page: of}}, 1)
		ok := len(looks) == 1 && looks[0].Phase != nil && looks[0].Phase.Name == "evaluation" && looks[0].Phase.Left > 19*time.Minute
		return ok, looks
	})
	other := run(t, "sleep", "600")
	if looks := New().Look([]Rank{{Process: other, Page: of}}, 1); len(looks) != 1 || looks[0].Phase != nil {
		t.Errorf("a process that opened none: %+v", looks)
	}
}

// TestALookEndsASendfile: what a rank writes in one long sendfile counts when the signal of a look ends it. The stack that the rank
// writes for the look does not count.
func TestALookEndsASendfile(t *testing.T) {
	const stack, written = 4 << 10, 50 << 20
	for name, c := range map[string]struct{ during, want uint64 }{"it only writes its stack": {stack, 0}, "a sendfile ends": {written + stack, written}} {
		w, p, l, io := New(), proc.Process{PID: 7, Start: 1}, protocol.Look{PID: 7}, uint64(1000)
		for range 2 {
			w.enter(p)
			w.end(p, used{io: io}, used{io: io + c.during}, &l, traffic{})
			io += c.during
		}
		if got := uint64(l.IO) - 1000; got < min(c.want, written-mostStack) || got > c.want {
			t.Errorf("%s: from look to look the rank wrote %d bytes, want %d", name, got, c.want)
		}
	}
}
