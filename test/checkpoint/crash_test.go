//go:build linux

package checkpoint

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/trainer"
)

var (
	crashKills      = flag.Int("crash-kills", 12, "kills within each window of a save, of small states")
	crashTorchKills = flag.Int("crash-torch-kills", 0, "the same, of tensors of 256 MiB")
)

// What happens together with the kill of a victim, so that kept steps are read again.
const (
	victimAlone = "alone"
	withRank    = "and its rank"
	rankLater   = "alone, a rank later"
	allNodes    = "and all nodes"
)

// window is a part of a save or restore in which a process is killed.
type window struct {
	name, victim string
	// kinds are what happens together with the kills, in turn.
	kinds []string
	// prelude: a rank is killed first, so that the window is within a restart.
	prelude bool
	// find returns a process that seems to be in the window. Its function still is called once the process is stopped, and reports whether
	// the process is in the window.
	find func(h *hunt) (p prey, seems bool)
}

// prey is the process that seems to be in a window.
type prey struct {
	pid int
	// rank is a trainer that is stopped as well, so that the trainer does not finish its work; 0: none.
	rank  int
	pod   *pod
	still func() bool
	// generation is that of the process, if it is not the generation of the kill.
	generation uint64
}

var windows = []window{
	{name: "copy", victim: "trainer", kinds: []string{victimAlone}, find: (*hunt).copying},
	{name: "seal", victim: "agent", kinds: []string{withRank, rankLater}, find: (*hunt).sealing},
	{name: "persist", victim: "agent", kinds: []string{withRank, allNodes, rankLater}, find: (*hunt).persisting},
	{name: "manifest", victim: "agent of slot 0", kinds: []string{withRank, allNodes, rankLater}, find: (*hunt).completing},
	{name: "restore", victim: "trainer", kinds: []string{victimAlone}, prelude: true, find: (*hunt).restoring},
}

// crashes counts the results of the kills.
type crashes struct {
	*gang
	mount      string
	state      int
	generation uint64
	start      uint64
	// the newest step of all ranks when the last kill was made: a job without progress is given up, so every third kill must come at a
	// newer step
	newest   uint64
	asked    int             // kills within each window
	timeout  time.Duration   // how long to wait for the present window, without counting restarts
	stale    map[string]bool // files in storage that an earlier kill may have left
	outcomes map[string]int
}

func newCrashes(t *testing.T, perPod, state int, command ...string) *crashes {
	mount := t.TempDir()
	c := &crashes{
		gang:     newGang(t, perPod, state+65536, mount, command...),
		mount:    mount,
		state:    state,
		stale:    map[string]bool{},
		outcomes: map[string]int{},
	}
	c.generation, _ = c.running(0)
	return c
}

// all kills n times within each window and prints the results.
func (c *crashes) all(n int, windows []window) {
	defer c.show()
	c.asked = n
	for _, w := range windows {
		began, left := time.Now(), 0
		c.timeout = 2*eventually.Timeout/5 + time.Duration(n)*eventually.Timeout/60
		for i := range n {
			left += c.once(w, i)
		}
		c.t.Logf("%s: %d kills in %s; %d times the victim had left it when it stood still", w.name, n, time.Since(began).Round(100*time.Millisecond), left)
	}
	c.readAll(c.mount)
}

func (c *crashes) show() {
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(c.outcomes)) {
		lines = append(lines, fmt.Sprintf("%5d %s", c.outcomes[what], what))
	}
	c.t.Logf("kills: window | victim | what came of it\n%s", strings.Join(lines, "\n"))
}

// once kills one victim in a window and checks what is restored. once returns how often a victim had left the window when it was stopped.
func (c *crashes) once(w window, i int) (left int) {
	kind := w.kinds[i%len(w.kinds)]
	after := c.start
	if i%3 == 0 {
		after = max(after, c.newest)
	}
	best := c.watch(after, 0, false)
	if kind == allNodes {
		eventually.Holds(c.t, "a durable step", func() (bool, any) { d, _ := c.d.Durable(); return d > 0, d })
	}
	if w.prelude {
		c.killRank(c.pods[c.rng.IntN(len(c.pods))])
	}
	h := c.hunt()
	defer h.close()
	found, seen, left := h.take(w, i)
	c.kills++
	best, old := max(best, seen), c.generation
	c.newest = max(c.newest, best)
	what := c.after(kind, found, best)
	above := max(old, found.generation)
	if kind == allNodes {
		best, _ = c.d.Durable() // the step that survives the loss of memory
		c.startAnew()
		c.generation, _ = c.running(above)
		c.start = c.checkRestart(c.generation+1<<40, c.generation, best)
	} else {
		c.generation, _ = c.running(above)
		c.start = c.checkRestart(old, c.generation, best)
	}
	outcome := "restored " + what
	if c.start > best {
		outcome = "restored a step newer than " + what
	}
	c.outcomes[fmt.Sprintf("%-8s | %s %s | %s", w.name, w.victim, kind, outcome)]++
	return left
}

// after does what belongs to the kind of kill, and returns the step that must be restored.
func (c *crashes) after(kind string, found prey, best uint64) string {
	c.t.Helper()
	switch kind {
	case withRank:
		if found.rank != 0 {
			_ = syscall.Kill(found.rank, syscall.SIGKILL)
			break
		}
		c.killRank(found.pod)
	case rankLater: // ranks survive: the next agent takes them over, and the steps that it seals are read too
		goOn(found.rank)
		eventually.Holds(c.t, "steps are sealed under the next agent", func() (bool, any) {
			common, _ := c.seen()
			return common > best, fmt.Sprintf("%d, at the kill %d", common, best)
		})
		c.killRank(found.pod)
	case allNodes:
		for _, p := range c.pods {
			p.lose(c.t)
		}
	}
	c.noteLeft()
	if kind == allNodes {
		return "the durable step"
	}
	return "the acknowledged step"
}

// startAnew starts new pods in place of lost pods.
func (c *crashes) startAnew() {
	for _, p := range c.pods {
		c.c.Forget(p.Name)
	}
	for _, p := range c.pods {
		p.start()
	}
}

// killRank kills the rank that the arena of a pod names.
func (c *crashes) killRank(p *pod) {
	c.t.Helper()
	h := c.hunt()
	defer h.close()
	for _, a := range h.arenas {
		if a.pod != p {
			continue
		}
		if _, client, ok := a.read(); ok {
			if !p.Owns(int(client.PID)) {
				return // the rank has ended, but the arena still names it
			}
			if err := syscall.Kill(int(client.PID), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				c.t.Fatal(err)
			}
			return
		}
	}
	c.t.Fatalf("no arena of pod %s names a rank", p.Name)
}

// take waits for a victim that seems to be in the window, stops it, checks whether it is in the window, and then kills it. seen is the
// newest step that all ranks held in memory before the kill.
func (h *hunt) take(w window, had int) (p prey, seen uint64, left int) {
	h.t.Helper()
	began := time.Now()
	restarted := began
	defer func() { h.timeout -= time.Since(began) }()
	for ; time.Since(began) < h.timeout; time.Sleep(20 * time.Microsecond) {
		p, seems := w.find(h)
		if !seems {
			if w.prelude && time.Since(restarted) > 2*time.Second { // the restart passed unobserved
				restarted = time.Now()
				h.mustGoOn()
				h.killRank(h.pods[0])
			}
			continue
		}
		if p.stop() && p.still() {
			seen, _ = h.seen()
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
			return p, seen, left
		}
		goOn(p.pid, p.rank)
		left++
	}
	h.t.Fatalf("window %s of the %s was hit %d times within its time, not %d; %d times the victim had left it since the last hit",
		w.name, w.victim, had, h.asked, left)
	return p, 0, left
}

// stop stops victim and rank until goOn; false if one of them is gone.
func (p prey) stop() bool {
	pids := []int{p.pid, p.rank}
	for _, pid := range pids {
		if pid != 0 && (!p.pod.Owns(pid) || syscall.Kill(pid, syscall.SIGSTOP) != nil) {
			return false
		}
	}
	return !slices.ContainsFunc(pids, func(pid int) bool { return pid != 0 && !awaitStop(pid) })
}

// goOn continues stopped processes; a pid of 0 is skipped.
func goOn(pids ...int) {
	for _, pid := range pids {
		if pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// awaitStop waits until all threads of a process are stopped; false if it is gone.
func awaitStop(pid int) bool {
	for deadline := time.Now().Add(eventually.Timeout); time.Now().Before(deadline); {
		switch stands, gone := standsStill(pid); {
		case gone:
			return false
		case stands:
			return true
		}
	}
	return false
}

func standsStill(pid int) (stands, gone bool) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil || len(tasks) == 0 {
		return false, true
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		if err != nil {
			return false, false // the thread has ended meanwhile
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		switch {
		case strings.HasPrefix(state, "Z"), strings.HasPrefix(state, "X"):
			if task.Name() == fmt.Sprint(pid) {
				return false, true
			}
		case !strings.HasPrefix(state, "T"):
			return false, false
		}
	}
	return true, false
}

// TestCrashWindows kills trainers and agents at known points of a save. After each kill every acknowledged step must be intact.
func TestCrashWindows(t *testing.T) {
	const state = 1 << 20
	c := newCrashes(t, 2, state, interpreter, trainer.File(t, trainer.Script), "0", fmt.Sprint(state))
	c.all(*crashKills, windows)
}

// TestCrashWindowsWithTorch does what TestCrashWindows does, with tensors of the size of a real rank's state.
func TestCrashWindowsWithTorch(t *testing.T) {
	if *crashTorchKills == 0 {
		t.Skip("SKIPPED: kills of tensors of 256 MiB, which make test-crash has; small ones do here")
	}
	needTorch(t)
	t.Setenv("TRAINER_KEEPS", "tensor")
	const state = 256 << 20
	c := newCrashes(t, 1, state, python, trainer.File(t, trainer.Script), "0", fmt.Sprint(state))
	c.all(*crashTorchKills, windows)
}

func needTorch(t *testing.T) {
	t.Helper()
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		if *crashTorchKills > 0 {
			t.Fatalf("torch is missing at %s: %v", python, err)
		}
		t.Skipf("TORCH IS MISSING at %s (%v): kills of a trainer with tensors are NOT tested here", python, err)
	}
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // in a real pod arenas are in memory, too
	}
}
