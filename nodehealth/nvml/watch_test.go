package nvml

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
)

// watch runs a parent, each child of which runs the script. $1 in the script is a directory.
func watch(t *testing.T, start time.Duration, script string, also ...func(*Watch)) (from <-chan nodehealth.Signal, dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "child.sh")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	out := make(chan nodehealth.Signal, 10000)
	w := Watch{Command: []string{"/bin/sh", path, dir}, Start: start, Deadline: time.Second,
		Log: slog.New(slog.DiscardHandler), Emit: func(s nodehealth.Signal) { out <- s }}
	for _, change := range also {
		change(&w)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return out, dir
}

func await(t *testing.T, from <-chan nodehealth.Signal, kind nodehealth.Kind) nodehealth.Signal {
	t.Helper()
	limit := time.After(eventually.Timeout)
	for {
		select {
		case s := <-from:
			if s.Kind == kind {
				return s
			}
		case <-limit:
			t.Fatalf("never: %s", kind)
		}
	}
}

// TestSilentChildIsFollowed: the first child writes one line and then nothing, the second writes nothing, the third works. On a busy
// machine the first child may be killed before its line is read; then the next one counts as the first.
func TestSilentChildIsFollowed(t *testing.T) {
	from, dir := watch(t, 2*time.Second, `
if ! [ -e "$1/heard" ]; then echo '{"read":true,"readings":[{"Device":"GPU-a","Recovery":2}]}'; exec sleep 600; fi
if mkdir "$1/second" 2>/dev/null; then exec sleep 600; fi
while :; do echo '{"xid":79,"device":"GPU-a"}'; echo 'no line of ours'; echo '{"read":true}'; sleep 0.1; done
`)
	if s := await(t, from, nodehealth.Read); len(s.Readings) != 1 || s.Readings[0].Device != "GPU-a" || s.Readings[0].Recovery != 2 {
		t.Errorf("%+v", s)
	}
	if err := os.WriteFile(filepath.Join(dir, "heard"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, from, nodehealth.Hang)
	if s := await(t, from, nodehealth.Xid); s.Code != 79 || s.Device != "GPU-a" || s.Source != nodehealth.NVML {
		t.Errorf("%+v", s)
	}
	await(t, from, nodehealth.Read)
}

// children returns the processes that the script's children recorded in the directory, and which of them still run.
func children(t *testing.T, dir string) (all, alive []int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "pids"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, pid); syscall.Kill(pid, 0) == nil {
			alive = append(alive, pid)
		}
	}
	return all, alive
}

// TestReleased: the release is reported once the child has ended, whether the child answered, hung or was starting. Afterwards another
// child is started.
func TestReleased(t *testing.T) {
	for name, script := range map[string]string{
		"answers": `while :; do echo '{"read":true}'; sleep 0.1; done`,
		"hangs":   `echo '{"read":true}'; exec sleep 600`,
		"begins":  `exec sleep 600`,
	} {
		t.Run(name, func(t *testing.T) {
			var by atomic.Pointer[string]
			say := func(text string) { by.Store(&text) }
			say("")
			from, dir := watch(t, 40*time.Second, `echo $$ >> "$1/pids"; `+script, func(w *Watch) {
				w.Deadline, w.Released = 20*time.Second, func() string { return *by.Load() }
			})
			begun := func(n int) {
				eventually.Holds(
					t,
					fmt.Sprint(n, " children"),
					func() (bool, any) { all, alive := children(t, dir); return len(all) == n && len(alive) == 1, all },
				)
			}
			begun(1)
			for round, text := range []string{"annotation", "label"} {
				say(text)
				if s := await(t, from, nodehealth.Released); s.Text != text {
					t.Errorf("%+v", s)
				}
				if _, alive := children(t, dir); len(alive) > 0 {
					t.Errorf("released while %v are at work", alive)
				}
				say("")
				begun(round + 2)
			}
		})
	}
}

// TestResting: the child opens a device that waits for a reset only for moments. A device that reads well stays open.
func TestResting(t *testing.T) {
	var rests atomic.Bool
	rests.Store(true)
	from, dir := watch(t, time.Minute, `echo $$ >> "$1/pids"
while :; do if [ -e "$1/well" ]; then echo '{"read":true,"readings":[{"Device":"GPU-a"}]}'; else echo '{"read":true,"readings":[{"Device":"GPU-a","Recovery":1}]}'; fi; sleep 0.1; done
`, func(w *Watch) { w.Resting, w.restFor = rests.Load, 2*time.Second })
	await(t, from, nodehealth.Read)
	eventually.Holds(t, "no child", func() (bool, any) { all, alive := children(t, dir); return len(alive) == 0, all })
	if err := os.WriteFile(filepath.Join(dir, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		await(t, from, nodehealth.Read)
	}
	if all, alive := children(t, dir); len(all) != 2 || len(alive) != 1 {
		t.Errorf("children %v, of which there are %v", all, alive)
	}
}

// TestCrashingChildIsNoHang: if a child ends before its first line, nothing can be queried, which is no hang.
func TestCrashingChildIsNoHang(t *testing.T) {
	from, _ := watch(t, time.Minute, `if mkdir "$1/first" 2>/dev/null; then exit 3; fi; while :; do echo '{"read":true}'; sleep 0.1; done`)
	if s := <-from; s.Kind != nodehealth.Blind {
		t.Errorf("%+v", s)
	}
	await(t, from, nodehealth.Read)
}

// TestAStallIsNoHang: a child's line is read even if the parent had no CPU time for long. A silent child counts as hanging after its
// deadline.
func TestAStallIsNoHang(t *testing.T) {
	child := exec.Command("true")
	if err := child.Run(); err != nil { // this child is there only to be killed
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		lines, ended := make(chan line), make(chan error, 1)
		reads, hung, heard := 0, false, time.Now()
		over := make(chan struct{})
		defer close(over)
		w := &Watch{Start: time.Minute, Deadline: 5 * time.Second, Log: slog.New(slog.DiscardHandler), Round: func(time.Duration) {}}
		w.Emit = func(s nodehealth.Signal) {
			switch s.Kind {
			case nodehealth.Read:
				reads, heard = reads+1, time.Now()
				time.Sleep(3 * w.Deadline / 2)
			case nodehealth.Hang:
				hung = true
				ended <- nil
			}
		}
		const words = 100
		go func() {
			for range words {
				time.Sleep(w.Deadline / 10)
				select {
				case lines <- line{Read: true}:
				case <-over:
					return
				}
			}
		}()
		(&runner{Watch: w}).listen(t.Context(), child, lines, ended)
		if silent := time.Since(heard) - 3*w.Deadline/2; reads != words || !hung || silent < w.Deadline*9/10 || silent > w.Deadline*11/10 {
			t.Errorf("heard %d of %d words; hung %v, after %s", reads, words, hung, silent)
		}
	})
}
