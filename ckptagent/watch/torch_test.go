//go:build linux

package watch_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/watch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

const torchPython = "/opt/holdfast-python/venv/bin/python3"

// script plays one hang after the other, each until the test writes into a FIFO. Rank 2 is in what the hang is called; the others wait for
// it.
const script = `
import ctypes, os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
pair = dist.new_group([1, 2])
libc, gate = ctypes.PyDLL(None), os.open("gate", os.O_RDWR)

def over(name):
    return os.path.exists("over-" + name)

def asleep():
    while not over("asleep"):
        time.sleep(0.2)

def locked():
    libc.read(gate, ctypes.create_string_buffer(1), ctypes.c_size_t(1))

def stopped():
    locked()

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        while not over("starved"):
            time.sleep(0.2)
        return torch.ones(1)

def starved():
    next(iter(DataLoader(Data(), num_workers=1)))

def receives():
    dist.recv(torch.ones(1), 0)

def computes():
    while not over("computes"):
        torch.ones(100, 100) @ torch.ones(100, 100)

dist.all_reduce(torch.ones(2, 3), group=pair) if rank in (1, 2) else None
for hang in (asleep, locked, stopped, starved, receives, computes):
    print(hang.__name__, flush=True)
    if rank == 2:
        hang()
    if rank == 0 and hang is receives:
        while not over("receives"):
            time.sleep(0.2)
        dist.send(torch.ones(1), 2)
    dist.all_reduce(torch.ones(2, 3))
print("end", flush=True)
os.read(gate, 1)
`

// gang is four ranks of gloo, started as the agent starts ranks.
type gang struct {
	t     *testing.T
	dir   string
	ranks []watch.Rank
	lines []chan string
	busy  bool // rank 2 computes
}

func start(t *testing.T) *gang {
	t.Helper()
	if exec.Command(torchPython, "-c", "import torch").Run() != nil {
		t.Skipf("SKIPPED: %s has no torch", torchPython)
	}
	dir, err := os.MkdirTemp("", "hf") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := syscall.Mkfifo(filepath.Join(dir, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "s.py"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	g := &gang{t: t, dir: dir}
	for rank := range 4 {
		g.start(rank, port)
	}
	return g
}

func (g *gang) start(rank, port int) {
	g.t.Helper()
	hooks, err := filepath.Abs("../python")
	if err != nil {
		g.t.Fatal(err)
	}
	pagePath, looks := filepath.Join(g.dir, fmt.Sprintf("page-%d", rank)), filepath.Join(g.dir, fmt.Sprintf("looks-%d", rank))
	if err := page.Prepare(pagePath); err != nil {
		g.t.Fatal(err)
	}
	cmd := exec.Command(torchPython, "-u", "s.py")
	cmd.Dir, cmd.Stderr = g.dir, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+hooks, "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1", "RANK="+strconv.Itoa(rank), "WORLD_SIZE=4",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port), "HOLDFAST_LOCAL_RANK="+strconv.Itoa(rank), "HOLDFAST_ERROR_FILE=e",
		"HOLDFAST_PAGE="+pagePath, "HOLDFAST_LOOKS="+looks)
	out, err := cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	g.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	p, ok := proc.Find(cmd.Process.Pid)
	if !ok {
		g.t.Fatal("the rank that was started does not live")
	}
	g.ranks, g.lines = append(g.ranks, watch.Rank{Local: rank, Process: p, Files: looks}), append(g.lines, lines)
}

// await waits until all ranks have come to a hang, and reads their pages.
func (g *gang) await(hang string) {
	g.t.Helper()
	for rank, lines := range g.lines {
		select {
		case line := <-lines:
			if line != hang {
				g.t.Fatalf("rank %d wrote %q, want %q", rank, line, hang)
			}
		case <-time.After(eventually.Timeout):
			g.t.Fatalf("rank %d has not come to %s", rank, hang)
		}
		p, err := page.Read(filepath.Join(g.dir, fmt.Sprintf("page-%d", rank)))
		if err != nil || p.Signal == 0 {
			g.t.Fatalf("rank %d: page %+v, %v", rank, p, err)
		}
		g.ranks[rank].Page = p
	}
}

// over ends a hang.
func (g *gang) over(hang string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "over-"+hang), nil, 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gang) open() {
	g.t.Helper()
	f, err := os.OpenFile(filepath.Join(g.dir, "gate"), os.O_WRONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		g.t.Fatal(err)
	}
}

// looks looks until the others wait for rank 2 in an operation, and then once more.
func (g *gang) looks(w *watch.Watcher, seq int64) (a, b []protocol.Look) {
	g.t.Helper()
	eventually.Holds(g.t, "ranks 0, 1 and 3 wait", func() (bool, any) {
		a = w.Look(g.ranks, 4)
		waiting := len(a) == 4
		for _, rank := range []int{1, 3} {
			waiting = waiting && world(a[rank]).Open != nil && world(a[rank]).Open.Seq == seq
		}
		return waiting, func() string { return fmt.Sprintf("%+v", a) }
	})
	eventually.Holds(g.t, "rank 2 uses little", func() (bool, any) { // it has begun, and what the look left running is over
		before := w.Look(g.ranks, 4)
		time.Sleep(300 * time.Millisecond)
		a = w.Look(g.ranks, 4)
		return len(a) == 4 && len(before) == 4 && a[2].IO == before[2].IO && (g.busy || a[2].MainCPU-before[2].MainCPU < 10*time.Millisecond), a
	})
	time.Sleep(time.Second)
	var took time.Duration
	eventually.Holds(g.t, "all ranks answer", func() (bool, any) { // on a loaded machine one may be later than the limit
		began := time.Now()
		b = w.Look(g.ranks, 4)
		took = time.Since(began)
		return len(b) == 4, b
	})
	if took > watch.Limit+time.Second {
		g.t.Errorf("a look took %s", took)
	} else {
		g.t.Logf("a look took %s", took.Round(time.Millisecond))
	}
	return a, b
}

// world returns the look at the group of all ranks.
func world(l protocol.Look) protocol.GroupLook {
	for _, g := range l.Groups {
		if g.Name == "gloo:0" {
			return g
		}
	}
	return protocol.GroupLook{}
}

func functions(l protocol.Look) string {
	var names []string
	for _, f := range l.Frames {
		names = append(names, f.Function)
	}
	return strings.Join(names, " < ")
}

// TestRealRanks looks at real ranks in one hang after the other.
func TestRealRanks(t *testing.T) {
	g := start(t)
	w := watch.New()
	for i, c := range []struct {
		hang  string
		check func(t *testing.T, a, b protocol.Look)
		start func()
		end   func()
	}{
		{hang: "asleep", check: func(t *testing.T, a, b protocol.Look) {
			still(t, a, b)
			eventually.Holds(t, "it waits in a sleep", func() (bool, any) { // it runs for a moment between two
				l := w.Look(g.ranks[2:3], 4)
				return len(l) == 1 && (l[0].Native == "hrtimer_nanosleep" || l[0].Native == "clock_nanosleep"), l
			})
		}},
		{hang: "locked", check: still, end: g.open},
		{
			hang: "stopped",
			check: func(t *testing.T, _, b protocol.Look) {
				if b.State != 'T' || b.Stack != protocol.StackWithheld || len(b.Frames) > 0 {
					t.Errorf("state %c, stack %v, frames %v", b.State, b.Stack, b.Frames)
				}
			},
			start: func() {
				eventually.Holds(t, "rank 2 is in its hang", func() (bool, any) {
					l := w.Look(g.ranks[2:3], 4)
					return len(l) == 1 && strings.Contains(functions(l[0]), "stopped"), l
				})
				_ = syscall.Kill(g.ranks[2].Process.PID, syscall.SIGSTOP)
			},
			end: func() { _ = syscall.Kill(g.ranks[2].Process.PID, syscall.SIGCONT); g.open() },
		},
		{
			hang: "starved",
			check: func(t *testing.T, a, b protocol.Look) {
				if !strings.Contains(functions(b), "_try_get_data") || b.Processes < 2 || b.IO != a.IO {
					t.Errorf("%d processes, %d bytes, frames %s", b.Processes, b.IO-a.IO, functions(b))
				}
			},
			start: func() { // the loader's worker may still be starting
				var before protocol.Look
				eventually.Holds(t, "rank 2 and its worker read nothing", func() (bool, any) {
					l := w.Look(g.ranks[2:3], 4)
					still := len(l) == 1 && l[0].Processes >= 2 && before.Processes >= 2 && l[0].IO == before.IO
					if len(l) == 1 {
						before = l[0]
					}
					return still, l
				})
			},
		},
		{hang: "receives", check: func(t *testing.T, _, b protocol.Look) {
			if b.Frames[0].Function != "recv" || b.Frames[0].File != "distributed/distributed_c10d.py" {
				t.Errorf("frames %+v", b.Frames)
			}
		}},
		{hang: "computes", check: func(t *testing.T, a, b protocol.Look) {
			if b.CPU-a.CPU <= mostStill || b.MainCPU-a.MainCPU <= mostStill { // more is not sure to be had on a loaded machine
				t.Errorf("used %s, its main thread %s", b.CPU-a.CPU, b.MainCPU-a.MainCPU)
			}
		}},
	} {
		t.Run(c.hang, func(t *testing.T) {
			g.t = t
			g.await(c.hang)
			if c.start != nil {
				c.start()
			}
			seq := int64(i + 1)
			g.busy = c.hang == "computes"
			a, b := g.looks(w, seq)
			t.Logf("%s %s in %s; used %s in all, %s in its main thread, %d bytes", string(b[2].State), functions(b[2]), b[2].Native,
				b[2].CPU-a[2].CPU, b[2].MainCPU-a[2].MainCPU, b[2].IO-a[2].IO)
			waiting(t, b, seq, c.hang)
			if c.hang == "asleep" {
				g.keep(w)
			}
			c.check(t, a[2], b[2])
			g.over(c.hang)
			if c.end != nil {
				c.end()
			}
		})
		if t.Failed() {
			return
		}
	}
	g.t = t
	g.await("end")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("this process took %d MiB from the system", m.Sys>>20)
}

// waiting checks what all looks have in common: ranks wait for rank 2 in an operation that it has not begun.
func waiting(t *testing.T, looks []protocol.Look, seq int64, hang string) {
	t.Helper()
	for rank, l := range looks {
		group := world(l)
		if l.State == 'T' { // none of its threads answers
			continue
		}
		if len(group.Ranks) != 1 || group.Ranks[0] != (protocol.RankRange{First: 0, Count: 4, Step: 1}) {
			t.Errorf("rank %d: members %v", rank, group.Ranks)
		}
		if rank == 2 || rank == 0 && hang == "receives" {
			if group.Open != nil || group.Enqueued != seq-1 || group.Completed != seq-1 {
				t.Errorf("rank %d has begun: %+v", rank, group)
			}
			continue
		}
		want := protocol.Operation{Seq: seq, Name: "all_reduce", Sizes: "2x3 Float"}
		if group.Open == nil || *group.Open != want || group.Enqueued != seq || group.Completed != seq-1 {
			t.Errorf("rank %d: %+v, open %+v", rank, group, group.Open)
		}
		if l.Stack != protocol.StackFresh || !strings.Contains(functions(l), "all_reduce") || l.State != 'S' {
			t.Errorf("rank %d: state %c, stack %v: %s", rank, l.State, l.Stack, functions(l))
		}
	}
	for _, rank := range []int{1, 2} { // the pair, whose operation is over
		if looks[rank].State == 'T' {
			continue
		}
		var pair protocol.GroupLook
		for _, g := range looks[rank].Groups {
			if g.Name != "gloo:0" {
				pair = g
			}
		}
		members := []protocol.RankRange{{First: 1, Count: 2, Step: 1}}
		if pair.Enqueued != 1 || pair.Open != nil || pair.Last == nil || !slices.Equal(pair.Ranks, members) {
			t.Errorf("rank %d: the pair is %+v", rank, pair)
		}
	}
}

// mostStill is the most processor time that the main thread of a rank that stands still uses between two looks.
const mostStill = 20 * time.Millisecond

// still checks a rank that does nothing, in the function of its hang.
func still(t *testing.T, a, b protocol.Look) {
	t.Helper()
	hang := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	if b.Stack != protocol.StackFresh || len(b.Frames) == 0 || b.Frames[0].Function != hang || !strings.HasSuffix(b.Frames[0].File, "/s.py") {
		t.Errorf("stack %v, frames %+v", b.Stack, b.Frames)
	}
	wakes := b.State == 'S' || b.State == 'R' // a busy machine shows it ready between two sleeps, and no processor time used
	if !wakes || b.PID != a.PID || b.CPU-a.CPU > 60*time.Millisecond || b.MainCPU-a.MainCPU > mostStill || b.IO-a.IO > 4096 {
		t.Errorf("state %c; used %s, its main thread %s, %d bytes", b.State, b.CPU-a.CPU, b.MainCPU-a.MainCPU, b.IO-a.IO)
	}
}

// keep keeps files of all ranks, and has torch's own tool read them: it names rank 2.
func (g *gang) keep(w *watch.Watcher) {
	g.t.Helper()
	dir := g.t.TempDir()
	began := time.Now()
	if err := w.Keep(g.ranks, 4, watch.Evidence{Dir: dir, Generation: 7, Ranks: 4, Bytes: 1 << 20}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Logf("keeping files took %s", time.Since(began).Round(time.Millisecond))
	for rank, function := range []string{"in all_reduce", "in all_reduce", "in asleep", "in all_reduce"} {
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%d.stack.txt", rank)))
		if err != nil || !strings.Contains(string(raw), function) || !strings.Contains(string(raw), "in <module>") {
			g.t.Errorf("rank %d: %v\n%s", rank, err, raw)
		}
	}
	out, err := exec.Command(filepath.Join(filepath.Dir(torchPython), "torchfrtrace"), dir, "-p", "gloo.rank-").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "missing ranks: {2}") {
		g.t.Errorf("torchfrtrace: %v\n%s", err, out)
	}
}
