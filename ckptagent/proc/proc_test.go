//go:build linux

package proc

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// sh starts a shell in a session of its own, and kills the session at the end of the test.
func sh(t *testing.T, script string, env ...string) Process {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := start(command{argv: []string{"/bin/sh", "-c", script}, env: append(os.Environ(), env...), files: [3]*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-p.PID, syscall.SIGKILL) })
	return p
}

// TestRanksAreKilledForMemoryFirst: when memory is short the kernel kills a rank, or a process that a rank started, before the agent and
// its other processes.
func TestRanksAreKilledForMemoryFirst(t *testing.T) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		start func(command) (Process, error)
		more  int
	}{{start, 0}, {startRank, 100}} {
		out := filepath.Join(t.TempDir(), "scores")
		// A child that starts later has the same score.
		script := "while [ ! -e " + out + ".go ]; do sleep 0.01; done; cat /proc/$$/oom_score_adj /proc/self/oom_score_adj >" + out
		p, err := c.start(command{argv: []string{"/bin/sh", "-c", script}, env: os.Environ(), files: [3]*os.File{null, null, null}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(out+".go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p.Wait(NewExits(Root(t.TempDir()), nil))
		got, err := os.ReadFile(out)
		score := min(atoi(strings.TrimSpace(string(own)))+c.more, 1000)
		if want := fmt.Sprintf("%d\n%d\n", score, score); err != nil || string(got) != want {
			t.Errorf("%d more: the scores are %q, want %q: %v", c.more, got, want, err)
		}
	}
}

func TestWaitTellsCodeAndSignal(t *testing.T) {
	exits := NewExits(Root(t.TempDir()), nil)
	for script, want := range map[string]protocol.Exit{
		"exit 3":     {Code: 3},
		"exit 0":     {},
		"kill -9 $$": {Code: 137, Signal: 9},
		"kill $$":    {Code: 143, Signal: 15},
	} {
		got := sh(t, script).Wait(exits)
		got.At = time.Time{}
		if got != want {
			t.Errorf("%s: %+v, want %+v", script, got, want)
		}
	}
}

func TestExitsFindTheRightProcess(t *testing.T) {
	root := Root(t.TempDir())
	if err := os.MkdirAll(root.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	lines := fmt.Sprintf("41 0 %d\n42 256 %d\n42 9 %d\nhalf a li", now.UnixNano(), now.Add(-time.Hour).UnixNano(), now.Add(time.Second).UnixNano())
	if err := os.WriteFile(root.ExitsFile(), []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	e := NewExits(root, r)
	// An earlier process with the same pid ended an hour ago and must not be found.
	ws, at, ok := e.Wait(42, now, time.Second)
	if !ok || !ws.Signaled() || ws.Signal() != 9 || !at.Equal(time.Unix(0, now.Add(time.Second).UnixNano())) {
		t.Errorf("got %v %v %v", ws, at, ok)
	}
	if _, _, ok := e.Wait(43, now, time.Millisecond); ok {
		t.Error("an exit that nobody recorded was found")
	}
	done := make(chan bool)
	go func() {
		_, _, ok := e.Wait(44, now, 20*time.Second)
		done <- ok
	}()
	f, err := os.OpenFile(root.ExitsFile(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "\n44 0 %d\n", now.UnixNano())
	f.Close()
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !<-done {
		t.Error("a record that came with a poke was not found")
	}
}

func TestAliveKnowsTheProcessNotTheNumber(t *testing.T) {
	p := sh(t, "exec sleep 100")
	if !p.Alive() {
		t.Error("a process that runs is not alive")
	}
	if other := (Process{PID: p.PID, Start: p.Start + 1}); other.Alive() {
		t.Error("another process of the same number is taken for it")
	}
	p.Kill()
	p.Wait(nil)
	if p.Alive() {
		t.Error("a process that has ended is alive")
	}
}

// newMark returns a mark that no other process uses, even if the same tests run at the same time.
func newMark() string { return fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()) }

func TestEndAll(t *testing.T) {
	// On a busy machine the rank may be killed before it has handled SIGTERM.
	grace := 300 * time.Millisecond
	for !endsAll(t, grace) {
		if grace *= 4; grace > eventually.Timeout {
			t.Fatal("the rank was not asked by SIGTERM")
		}
	}
}

// endsAll runs EndAll once; asked: the rank handled SIGTERM.
func endsAll(t *testing.T, grace time.Duration) (asked bool) {
	t.Helper()
	mark := newMark()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	rank := sh(t, fmt.Sprintf(`trap 'touch %s' TERM; (setsid sh -c 'touch %s; exec sleep 100') & (exec env -i sleep 101) & touch %s; while :; do wait; sleep 0.1; done`, file("asked"), file("stray"), file("ready")), EnvMark+"="+mark)
	spared := sh(t, "exec sleep 100", EnvMark+"="+mark)
	other := sh(t, "exec sleep 100", EnvMark+"=not-"+mark)
	eventually.Holds(t, "the processes start", func() (bool, any) {
		_, stray := os.Stat(file("stray"))
		_, ready := os.Stat(file("ready"))
		return stray == nil && ready == nil, errors.Join(stray, ready)
	})
	go rank.Wait(nil) // as the agent does, so that no zombie stays
	began := time.Now()
	EndAll(mark, []Process{rank}, []int{spared.PID}, grace)
	if took := time.Since(began); took < grace { // the rank does not end by itself
		t.Errorf("all have ended after %s, before their grace of %s is over", took, grace)
	}
	if left, _ := find(func(pid int, st stat) (bool, error) {
		marked, err := isMarked(pid, st, mark)
		return st.session == rank.PID || st.session != spared.PID && marked, err
	}); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if rank.Alive() {
		t.Error("the rank is alive")
	}
	if !spared.Alive() || !other.Alive() {
		t.Error("a process was ended that had to be spared")
	}
	_, err := os.Stat(file("asked"))
	return err == nil
}

// TestInitSignalsWhatRunsTheCommand: init forwards signals to the process that runs the command. Between two runs of the command it signals
// no process.
func TestInitSignalsWhatRunsTheCommand(t *testing.T) {
	i := &initProcess{root: Root(t.TempDir())}
	if err := os.MkdirAll(i.root.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	p := sh(t, "exec sleep 1000")
	later := p
	later.Start--
	for _, c := range []struct {
		held *Process
		want int
	}{{nil, 0}, {&p, p.PID}, {&later, 0}, {&Process{}, 0}} {
		if c.held != nil {
			if err := c.held.Hold(i.root); err != nil {
				t.Fatal(err)
			}
		}
		if got := i.present(); got != c.want {
			t.Errorf("with %v held: process %d, want %d", c.held, got, c.want)
		}
	}
	i.user = 5
	if got := i.present(); got != 5 {
		t.Errorf("while the first run lasts: process %d, want 5", got)
	}
}

// TestALookThatSeesNothingProvesNothing: without a free file descriptor the kernel's list of processes cannot be read. Then no process may
// count as gone.
func TestALookThatSeesNothingProvesNothing(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	anything := func(int, stat) (bool, error) { return true, nil }
	_, found := find(anything)
	_, descend := below(os.Getppid(), os.Getpid())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if found || descend {
		t.Errorf("a look is believed that saw nothing: %t, %t", found, descend)
	}
	if _, ok := find(anything); !ok {
		t.Error("a look is not believed that saw all")
	}
}

// TestAProcessBetweenTwoPrograms: while a process executes another program, the kernel shows none of its variables, so it may still be a
// marked process. EndAll waits for such a process, at most for execTimeout.
func TestAProcessBetweenTwoPrograms(t *testing.T) {
	dir := os.Getenv("TEST_BETWEEN_PROGRAMS")
	if dir != "" {
		hideThenSleep(dir)
	}
	dir = t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := newMark()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := start(command{
		argv: []string{self, "-test.run=^" + t.Name() + "$"}, env: append(os.Environ(), EnvMark+"="+mark, "TEST_BETWEEN_PROGRAMS="+dir), files: [3]*os.File{null, null, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	eventually.Holds(t, "the process shows nothing", func() (bool, any) {
		if !p.Alive() {
			t.Fatal("the process has ended")
		}
		_, err := os.Stat(dir + "/hidden")
		return err == nil, err
	})
	marked := func(pid int, st stat) (bool, error) {
		if pid != p.PID {
			return false, nil
		}
		return isMarked(pid, st, mark)
	}
	if found, ok := find(marked); ok || len(found) > 0 {
		t.Errorf("a look that is believed: %v, of a process that shows nothing: %v", ok, found)
	}
	// The time of that process starts when nothing else is left to be ended, however long that takes.
	ready, grace := filepath.Join(dir, "ready"), execTimeout+execTimeout/2
	rank := sh(t, "trap : TERM; touch "+ready+"; while :; do sleep 1; done")
	eventually.Holds(t, "the rank is there", func() (bool, any) { _, err := os.Stat(ready); return err == nil, err })
	go rank.Wait(nil)
	began := time.Now()
	EndAll(mark, []Process{rank}, nil, grace)
	if took := time.Since(began); took < grace+execTimeout || !p.Alive() {
		t.Errorf("the process is alive: %v, and was given up after %s", p.Alive(), took)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the process shows its mark", func() (bool, any) {
		found, _ := find(marked)
		return len(found) == 1, found
	})
	go p.Wait(nil)
	EndAll(mark, nil, nil, 0)
	if p.Alive() {
		t.Error("the process is alive")
	}
}

// init plays a program whose first thread ends before its other threads.
func init() {
	if os.Getenv("TEST_FIRST_THREAD_ENDS") == "" {
		return
	}
	go func() {
		time.Sleep(time.Hour)
		os.Exit(1)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread, which is the first one until main begins
}

// TestAProcessWhoseFirstThreadHasEnded: the environment of such a process can still be read.
func TestAProcessWhoseFirstThreadHasEnded(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := newMark()
	p, err := start(command{
		argv: []string{self}, env: append(os.Environ(), EnvMark+"="+mark, "TEST_FIRST_THREAD_ENDS=1"), files: [3]*os.File{os.Stdin, os.Stderr, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	eventually.Holds(t, "its first thread has ended", func() (bool, any) {
		st, err := readStat(p.PID)
		return err == nil && st.state == 'Z' && !st.dead(), st
	})
	go p.Wait(nil)
	EndAll(mark, nil, nil, 0)
	if p.Alive() {
		t.Error("it is alive")
	}
}

// TestAProcessThatStartsProgramAfterProgram: a process that executes one program after the other is never taken for a process without the
// mark, whenever it is read.
func TestAProcessThatStartsProgramAfterProgram(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	mark := newMark()
	p := sh(t, "exec "+script, EnvMark+"="+mark)
	seen, between := 0, 0
	eventually.Holds(t, "many looks", func() (bool, any) {
		for range 1000 {
			st, err := readStat(p.PID)
			if err != nil {
				t.Fatal(err)
			}
			switch marked, err := isMarked(p.PID, st, mark); {
			case errors.Is(err, errExec):
				between++
			case err != nil || !marked:
				t.Fatalf("after %d looks: marked %v, %v", seen+between, marked, err)
			default:
				seen++
			}
		}
		return seen > 10000 && between > 100, []int{seen, between}
	})
}

// hideThenSleep makes this process look like one that executes another program, until a file appears; then it executes sleep.
func hideThenSleep(dir string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	raw, err := os.ReadFile("/proc/self/stat")
	must(err)
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	at := func(number int) uint64 { // as proc(5) counts
		n, err := strconv.ParseUint(fields[number-3], 10, 64)
		must(err)
		return n
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	// prctl_mm_map of linux/prctl.h: all values stay, except that the environment is at an address without memory.
	const nowhere = 1 << 16
	layout := []uint64{
		at(26),
		at(27),
		at(45),
		at(46),
		at(47),
		uint64(brk),
		at(28),
		at(48),
		at(49),
		nowhere,
		nowhere + 4096,
		0,
		uint64(math.MaxUint32) << 32,
	}
	_, _, errno := unix.Syscall6(
		unix.SYS_PRCTL,
		unix.PR_SET_MM,
		unix.PR_SET_MM_MAP,
		uintptr(unsafe.Pointer(&layout[0])),
		uintptr(8*len(layout)),
		0,
		0,
	)
	if errno != 0 {
		panic(errno)
	}
	must(os.WriteFile(dir+"/hidden", nil, 0o600))
	for {
		if _, err := os.Stat(dir + "/go"); err == nil {
			must(syscall.Exec("/bin/sleep", []string{"sleep", "1000"}, os.Environ()))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestEndAllLeavesALaterOwnerOfAPidAlone: a session whose leader started at another time belongs to another program, and is not ended.
func TestEndAllLeavesALaterOwnerOfAPidAlone(t *testing.T) {
	other := sh(t, "exec sleep 1000")
	EndAll(newMark(), []Process{{PID: other.PID, Start: other.Start - 1}, {PID: 0}, {PID: 1}}, nil, time.Millisecond)
	if !other.Alive() {
		t.Error("a process was ended that is no rank")
	}
}

// TestEndAllWaitsForWhatItAsked: a stray process without a handler for SIGTERM does not use up the time that ranks have to end.
func TestEndAllWaitsForWhatItAsked(t *testing.T) {
	mark, stray := newMark(), filepath.Join(t.TempDir(), "stray")
	rank := sh(t, fmt.Sprintf(`setsid sh -c 'touch %s; exec sleep 1000' & wait`, stray), EnvMark+"="+mark)
	eventually.Holds(t, "the stray starts", func() (bool, any) { _, err := os.Stat(stray); return err == nil, err })
	go rank.Wait(nil)
	ended := make(chan bool)
	go func() {
		EndAll(mark, []Process{rank}, nil, time.Hour)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("a stray is waited for")
	}
	if left, _ := find(func(pid int, st stat) (bool, error) { return isMarked(pid, st, mark) }); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestReadStatOfAnOddName(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a) Z 1")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	p := sh(t, "exec '"+name+"' 100")
	eventually.Holds(t, "exec", func() (bool, any) {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
		return strings.HasPrefix(string(raw), "a) Z"), string(raw)
	})
	if st, err := readStat(p.PID); err != nil || st.dead() || st.session != p.PID || st.start != p.Start {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestPortIsKeptForTheStore(t *testing.T) {
	p, err := OfferPort(Ports{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := CheckPort(p.Number); err != nil {
		t.Errorf("the store could not listen: %v", err)
	}
	store, err := net.Listen("tcp", fmt.Sprintf(":%d", p.Number)) // with SO_REUSEADDR, as the store does
	if err != nil {
		t.Fatalf("the store could not listen: %v", err)
	}
	if err := CheckPort(p.Number); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port in use: %v", err)
	}
	store.Close()
	low, high := 32768, 60999
	if raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		fmt.Sscan(string(raw), &low, &high)
	}
	if p.Number < low || p.Number > high {
		t.Errorf("port %d", p.Number)
	}
}

// TestPortsOfOneNetwork: agents in one network namespace, such as those of pods on their node's network, never offer the same port, whether
// the kernel chooses the ports or their users' ranges overlap.
func TestPortsOfOneNetwork(t *testing.T) {
	free, err := OfferPort(Ports{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	three := Ports{free.Number, free.Number + 2}
	kept := map[int]Port{}
	offer := func(allowed Ports, last int) (Port, error) {
		p, err := OfferPort(allowed, last)
		if err == nil {
			if _, twice := kept[p.Number]; twice {
				t.Errorf("port %d is offered twice", p.Number)
			}
			kept[p.Number] = p
			t.Cleanup(p.Close)
		}
		return p, err
	}
	for _, last := range []int{0, three.First, 0} {
		if p, err := offer(three, last); err != nil || p.Number < three.First || p.Number > three.Last {
			t.Fatalf("port %d of %s: %v", p.Number, three, err)
		}
	}
	for range 500 {
		if _, err := offer(Ports{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := offer(three, three.First); err == nil || !strings.Contains(err.Error(), "the agent of another pod in this network namespace holds port") {
		t.Errorf("a fourth of three ports: %v", err)
	}
	kept[three.First].Close()
	delete(kept, three.First)
	foreign, err := net.Listen("tcp", fmt.Sprintf(":%d", three.First)) // of a program without an agent
	if err != nil {
		t.Fatal(err)
	}
	if _, err := offer(three, three.First); err == nil {
		t.Error("a port is offered on which another program listens")
	}
	foreign.Close()
	if p, err := offer(three, three.Last); err != nil || p.Number != three.First {
		t.Errorf("port %d is offered, want the one that is free again: %v", p.Number, err)
	}
}

// TestDutyKeepsToItsShare measures a process that uses all the CPU time that it gets.
func TestDutyKeepsToItsShare(t *testing.T) {
	p := sh(t, "while :; do :; done")
	b := &ration{pid: p.PID, looked: time.Now()}
	const share = 0.2
	begin := time.Now()
	longest := time.Duration(0)
	for time.Since(begin) < 1500*time.Millisecond {
		last := b.looked
		b.duty(time.Now(), share)
		longest = max(longest, b.looked.Sub(last))
		time.Sleep(warmTick)
	}
	took := time.Since(begin)
	used, err := cpuTime(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	// The process may exceed its share by what it can use between two checks. On a busy machine checks are further apart.
	if most := time.Duration(1.6*share*float64(took)) + max(longest, time.Since(b.looked)); used > most {
		t.Errorf("used %s of a processor in %s, its share is %.0f %%; the longest time between two looks was %s", used, took, 100*share, longest)
	}
	b.pause(time.Now())
	eventually.Holds(t, "stop", func() (bool, any) { st, err := readStat(p.PID); return st.state == 'T', err })
	before, _ := cpuTime(p.PID)
	b.looked = time.Now().Add(-time.Minute)
	b.duty(time.Now(), share) // the process has credit again, whatever it used before it stopped
	eventually.Holds(t, "go on", func() (bool, any) { now, _ := cpuTime(p.PID); return now > before, now })
}

func TestReadTraceback(t *testing.T) {
	root := Root(t.TempDir())
	if err := os.MkdirAll(root.Ranks(), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := ReadTraceback(root, 3, 1); ok {
		t.Error("a traceback that is not there")
	}
	long := strings.Repeat("ä", 5000) + "\xff end"
	if err := os.WriteFile(root.ErrorFile(3, 1), []byte(long), 0o644); err != nil {
		t.Fatal(err)
	}
	tb, ok := ReadTraceback(root, 3, 1)
	if !ok || len(tb.Text) > protocol.MaxText || !strings.HasSuffix(tb.Text, "ä? end") || strings.HasPrefix(tb.Text, "?") {
		t.Errorf("%v %d %q", ok, len(tb.Text), tb.Text[len(tb.Text)-10:])
	}
}

func TestInterpreter(t *testing.T) {
	dir := t.TempDir()
	shims := filepath.Join(dir, "root", "shims")
	bin, empty := filepath.Join(dir, "bin"), filepath.Join(dir, "empty")
	for _, d := range []string{shims, bin, empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(shims, "torchrun"), "#!/our/own/python\n")
	write(filepath.Join(bin, "python3"), "")
	long := "/" + strings.Repeat("x", 130) + "/bin/python3"
	for first, want := range map[string]string{
		"#!/opt/venv/bin/python3.11\n":                        "/opt/venv/bin/python3.11",
		"#!/opt/venv/bin/python3 -E\n":                        "/opt/venv/bin/python3",
		"#!/usr/bin/env python3\n":                            filepath.Join(bin, "python3"),
		"#!/bin/sh\n'''exec' " + long + " \"$0\" \"$@\"\n":    long,
		"#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n": "/a b/python",
		"#!/bin/bash\n":                                       filepath.Join(bin, "python3"), // not a Python script: the python3 on PATH
		"\x7fELF":                                             filepath.Join(bin, "python3"),
	} {
		write(filepath.Join(bin, "torchrun"), first)
		l := &Launch{Dir: dir, Env: map[string]string{"PATH": shims + "::" + empty + ":" + bin, EnvRoot: filepath.Join(dir, "root")}}
		got, err := l.interpreter()
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", first, got, err, want)
		}
	}
	if _, err := (&Launch{Dir: dir, Env: map[string]string{"PATH": empty}}).interpreter(); err == nil || !strings.Contains(err.Error(), "none on PATH") {
		t.Error(err)
	}
}

func TestCountGPUs(t *testing.T) {
	for v, want := range map[string]int{"": 0, "0": 1, "0,1,2": 3, "GPU-a, GPU-b": 2, "0,-1,2": 1, "-1": 0} {
		if got := countGPUs(map[string]string{"CUDA_VISIBLE_DEVICES": v}); got != want {
			t.Errorf("%q: %d, want %d", v, got, want)
		}
	}
}

func TestRankEnvironment(t *testing.T) {
	spec := launch.Spec{Ranks: 2, Role: "r", RunID: "id", MaxRestarts: 4, Python: []string{"python3"}, Script: "t.py"}
	j := Job{Root: "/r", Mark: "m", Spec: spec, Arena: true, Launch: &Launch{Env: map[string]string{"A": "b", "RANK": "old"}}}
	run := protocol.Run{
		Number:        7,
		WorldSize:     4,
		BaseRank:      2,
		NodeRank:      1,
		Nodes:         2,
		MasterAddr:    "10.0.0.1",
		MasterPort:    4000,
		RestoreStep:   9,
		RestoreBranch: 4,
		RestartCount:  3,
	}
	env := j.env(run, 1)
	for name, want := range map[string]string{
		"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4",
		"ROLE_NAME": "r", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000", "TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_MAX_RESTARTS": "4", "TORCHELASTIC_RUN_ID": "id",
		"OMP_NUM_THREADS": "1", EnvGeneration: "7", EnvRestoreStep: "9", EnvRestoreBranch: "4", EnvArena: "/r/memory/rank-1.arena", EnvSocket: "/r/run/agent.sock", EnvLocalRank: "1",
		EnvErrorFile: "/r/run/ranks/error-7-1.txt", EnvPage: "/r/run/page-1", EnvLooks: "/r/run/ranks/looks-1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
		"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
	} {
		if env[name] != want {
			t.Errorf("%s=%q, want %q", name, env[name], want)
		}
	}
	list := j.Launch.environ(env)
	if !slices.Contains(list, "A=b") || !slices.Contains(list, "RANK=3") || slices.Contains(list, "RANK=old") {
		t.Errorf("environment %v", list)
	}
	generation := []string{EnvGeneration, EnvRestoreStep, EnvRestoreBranch, EnvErrorFile, EnvPage, EnvLooks, EnvArena, "MASTER_ADDR", "MASTER_PORT",
		"TORCHELASTIC_RESTART_COUNT"}
	single := []string{"RANK", "LOCAL_RANK", "ROLE_RANK", EnvLocalRank}
	for _, tc := range []struct {
		locals     []int
		has, lacks []string
	}{
		{[]int{1}, append(single, "WORLD_SIZE", "GROUP_RANK"), generation},
		{[]int{0, 1}, []string{"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS", EnvSocket}, append(generation, single...)},
	} {
		got := j.sourceEnv(run, tc.locals)
		for _, name := range tc.lacks {
			if v, ok := got[name]; ok {
				t.Errorf("the source of %v knows %s=%s", tc.locals, name, v)
			}
		}
		for _, name := range tc.has {
			if got[name] != env[name] {
				t.Errorf("the source of %v: %s=%q, want %q", tc.locals, name, got[name], env[name])
			}
		}
	}
	if own := j.own(run); slices.ContainsFunc(single, func(name string) bool { return !slices.Contains(own, name) }) ||
		slices.Contains(own, "GROUP_RANK") {
		t.Errorf("ranks of a pod differ in %v", own)
	}
	elastic := run
	elastic.Slots, elastic.Donor = 3, 2
	for _, locals := range [][]int{{1}, {0, 1}} {
		source := j.sourceEnv(elastic, locals)
		for _, name := range []string{"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", EnvDonor} {
			if v, ok := source[name]; ok {
				t.Errorf("the source of %v in a gang that may go on with fewer pods knows %s=%s", locals, name, v)
			}
		}
	}
	if env := j.env(elastic, 1); env[EnvDonor] != "2" || env["WORLD_SIZE"] != "4" {
		t.Errorf("environment of a rank with a donor: %v", env)
	}
	j.Spec.VirtualLocalRank = true
	if env := j.env(run, 1); env["LOCAL_RANK"] != "0" || env["CUDA_VISIBLE_DEVICES"] != "1" || env[EnvLocalRank] != "1" {
		t.Errorf("with a device of its own: %v", env)
	}
	j.Spec.VirtualLocalRank = false
	j.Launch.Env["OMP_NUM_THREADS"] = "8"
	if _, ok := j.env(run, 0)["OMP_NUM_THREADS"]; ok {
		t.Error("the user's OMP_NUM_THREADS is overridden")
	}
	if got := strings.Join(j.argv(0), " "); got != "python3 -u t.py" {
		t.Errorf("command line %q", got)
	}
	j.Spec.Module, j.Spec.Args = true, []string{"x", "${local_rank}"}
	if got := strings.Join(j.argv(1), " "); got != "python3 -u -m t.py x 1" {
		t.Errorf("command line %q", got)
	}
}

// TestExitsAreBounded: the exits file stays small in a container with very many orphans, and the newest exits are in it.
func TestExitsAreBounded(t *testing.T) {
	root := Root(t.TempDir())
	if err := os.MkdirAll(root.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(root.ExitsFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	i := &initProcess{root: root, exits: f}
	exits := NewExits(root, nil)
	for pid := 100; pid < 30_000; pid++ {
		i.record(pid, 3<<8)
		if pid%5000 == 0 {
			if ws, _, ok := exits.find(pid-500, time.Time{}); !ok || ws.ExitStatus() != 3 {
				t.Fatalf("the end of process %d is forgotten at %d", pid-500, pid)
			}
		}
	}
	if st, err := os.Stat(root.ExitsFile()); err != nil || st.Size() > maxExits+100 {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
	i.exits.Close()
}
