//go:build linux

package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// warmed has standbys of real interpreters.
type warmed struct {
	*Standbys
	t   *testing.T
	job Job
	run protocol.Run
	out *os.File // what ranks write

	mu    sync.Mutex
	ready map[int]bool
}

// whichPython returns the interpreter itself. The python3 on PATH may be a wrapper.
func whichPython(t *testing.T) string {
	t.Helper()
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH, and standbys are Python processes")
	}
	return strings.TrimSpace(string(python))
}

// says is a script that prints its rank and the imported modules.
const says = `
import os, sys
print(os.environ["RANK"], os.environ["LOCAL_RANK"], *sorted(m for m in ("colorsys", "sndhdr", "starts", "opens", "reads", "plain") if m in sys.modules), flush=True)
`

// library has the modules that scripts of these tests may import.
var library = map[string]string{
	"starts": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
	"opens":  "import socket\npair = socket.socketpair()\n",
	"reads":  "import os\nLOCAL = os.environ.get('LOCAL_RANK')\n",
	"rests":  "import holdfast_standby\nholdfast_standby._REST = 3600\n",
	"plain":  "import os\nHOME = os.environ.get('HOME')\n",
	"busy":   "while True: pass\n",
}

func newWarmed(t *testing.T, ranks int, modules ...string) *warmed {
	t.Helper()
	python := whichPython(t)
	dir := t.TempDir()
	for name, text := range library {
		if err := os.WriteFile(filepath.Join(dir, name+".py"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "script.py")
	if err := os.WriteFile(script, []byte(says), 0o644); err != nil {
		t.Fatal(err)
	}
	hook, err := filepath.Abs("../python")
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &warmed{
		t:     t,
		out:   out,
		ready: map[int]bool{},
		run:   protocol.Run{Number: 1, WorldSize: ranks, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 4000},
	}
	w.job = Job{
		Root: Root(
			dir,
		),
		Mark: newMark(),
		Own:  readLimits(),
		Spec: launch.Spec{Ranks: ranks, Script: script, Python: []string{python}},
		Launch: &Launch{Files: [3]*os.File{null, write, os.Stderr}, Limits: readLimits(), Dir: dir,
			Env: map[string]string{"PATH": os.Getenv("PATH"), "PYTHONPATH": hook + ":" + dir, "PYTHONDONTWRITEBYTECODE": "1"}},
	}
	w.Standbys = NewStandbys(NewExits(Root(dir), nil), func(local int, ready bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ready[local] = ready
	})
	t.Cleanup(func() {
		w.Close()
		EndAll(w.job.Mark, nil, nil, 0)
		for _, f := range []*os.File{null, write, out} {
			f.Close()
		}
	})
	w.Configure(w.job, "")
	w.SetModules(modules, 0)
	w.SetWarm(true, w.run)
	return w
}

// until waits until all ranks have standbys and ok returns true. until returns the sources and the pids of the standbys.
func (w *warmed) until(what string, ok func(sources []*source) bool) (sources []*source, pids []int) {
	w.t.Helper()
	eventually.Holds(w.t, what, func() (bool, any) {
		w.mu.Lock()
		n := 0
		for _, ready := range w.ready {
			if ready {
				n++
			}
		}
		w.mu.Unlock()
		w.Standbys.mu.Lock()
		defer w.Standbys.mu.Unlock()
		sources, pids = w.sources(), nil
		for _, b := range w.slots {
			if b == nil || b.state != standbyReady || !b.source.warmed() {
				return false, "not every rank has one that is warmed"
			}
			pids = append(pids, b.rank.PID)
		}
		return n == len(w.slots) && (ok == nil || ok(sources)), n
	})
	return sources, pids
}

// lacking returns the ranks without a standby.
func (w *warmed) lacking() (ranks []int) {
	w.Standbys.mu.Lock()
	defer w.Standbys.mu.Unlock()
	for local, b := range w.slots {
		if b == nil || !b.waits() {
			ranks = append(ranks, local)
		}
	}
	return ranks
}

// becomes makes a rank's standby the rank, and returns the output of its script.
func (w *warmed) becomes(local int) string {
	w.t.Helper()
	p, _, ok := w.Take(w.run, local)
	if !ok {
		w.t.Fatalf("rank %d has no standby", local)
	}
	line, err := bufio.NewReader(w.out).ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	waitGone(p)
	return strings.TrimSpace(line)
}

// TestOneSourceServesAllRanks: one interpreter imports, and each rank gets a standby forked from it, with variables of its own.
func TestOneSourceServesAllRanks(t *testing.T) {
	w := newWarmed(t, 3, "colorsys", "plain")
	sources, first := w.until("have standbys", nil)
	if len(sources) != 1 || len(w.Processes()) != 4 || slices.Contains(first, sources[0].process.PID) {
		t.Fatalf("%d sources, processes %v", len(sources), w.Processes())
	}
	for _, local := range []int{2, 0, 1} {
		if got, want := w.becomes(local), fmt.Sprintf("%d %d colorsys plain", local, local); got != want {
			t.Errorf("rank %d says %q, want %q", local, got, want)
		}
	}
	again, second := w.until("have standbys again", nil)
	if again[0] != sources[0] || slices.Equal(first, second) {
		t.Errorf("the next standbys are %v of source %d, the first were %v of %d", second, again[0].process.PID, first, sources[0].process.PID)
	}
}

// TestRanksStartFromAWarmSource: a generation that begins while standbys are missing makes the source fork them at once, also if the source
// has imported only half of its modules. If no standby can come, the generation does not wait.
func TestRanksStartFromAWarmSource(t *testing.T) {
	w := newWarmed(t, 2, "colorsys", "rests") // without a request no second fork would come
	w.until("have standbys", nil)
	if w.Await() != nil {
		t.Error("waits although all standbys are ready")
	}
	for range 3 {
		begun := time.Now()
		for local := range 2 {
			if got, want := w.becomes(local), fmt.Sprintf("%d %d colorsys", local, local); got != want {
				t.Errorf("rank %d says %q, want %q", local, got, want)
			}
		}
		w.SetWarm(false, w.run)
		asked := time.Now()
		if forgone := w.Await(); forgone != nil { // as if the generation were ended at once, and another one followed
			w.Forgo()
			<-forgone
		}
		if ready := w.Await(); ready != nil { // nil if both forks have come since the wait was given up
			<-ready
		}
		if lacking := w.lacking(); lacking != nil && time.Since(asked) < forkTimeout {
			t.Fatalf("does not wait for copies of a warm source: ranks %v have none", lacking)
		}
		eventually.Holds(t, "copies that a busy machine makes late", func() (bool, any) { return w.lacking() == nil, w.lacking() })
		t.Logf("two ranks ran and two copies were made within %s", time.Since(begun))
		w.SetWarm(true, w.run)
	}
	w.until("have standbys", nil)

	cold := newWarmed(t, 2)
	if cold.Await() != nil {
		t.Error("waits although no modules are known")
	}
	cold.SetWarm(false, cold.run)
	cold.SetModules([]string{"colorsys"}, 0)
	if cold.Await() != nil {
		t.Error("waits although nothing is imported yet")
	}
}

// TestEachRankHasItsSourceWhereOneWouldNotDo: a module that reads a rank's own variables, or that cannot be forked, is imported once per
// rank.
func TestEachRankHasItsSourceWhereOneWouldNotDo(t *testing.T) {
	for module, why := range map[string]string{"reads": "reads LOCAL_RANK", "starts": "starts a thread", "opens": "opens a socket"} {
		t.Run(module, func(t *testing.T) {
			w := newWarmed(t, 2, "colorsys", module)
			sources, _ := w.until("have standbys", nil)
			if len(sources) != 2 || !strings.Contains(w.servingWhy, why) {
				t.Fatalf("%d sources, because %q", len(sources), w.servingWhy)
			}
			for local := range 2 {
				if got, want := w.becomes(local), fmt.Sprintf("%d %d colorsys %s", local, local, module); got != want {
					t.Errorf("rank %d says %q, want %q", local, got, want)
				}
			}
			w.until("have standbys again", nil)
		})
	}
}

// TestSourceYieldsToTrial: before the first generation a source imports at full speed, but beside a trial with a share.
func TestSourceYieldsToTrial(t *testing.T) {
	w := newWarmed(t, 2)
	w.SetWarm(true, protocol.Run{})
	w.SetModules([]string{"busy"}, 0)
	rationed := func(is func(ration) bool) func() (bool, any) {
		return func() (bool, any) {
			w.Standbys.mu.Lock()
			defer w.Standbys.mu.Unlock()
			src := w.importing()
			return src != nil && is(src.ration), src
		}
	}
	unlimited := func(r ration) bool { return r.credit == 0 && !r.stopped && r.used > 300*time.Millisecond }
	eventually.Holds(t, "the source imports at full speed", rationed(unlimited))
	w.Yield(true)
	eventually.Holds(t, "the source has a share", rationed(func(r ration) bool { return r.credit != 0 }))
	w.Yield(false)
	eventually.Holds(t, "the source is not stopped", rationed(func(r ration) bool { return !r.stopped }))
}

// TestStandbysLearnMore: modules that ranks import late are imported for later standbys, and the earlier standbys are replaced. That never
// happens while a generation starts or ends.
func TestStandbysLearnMore(t *testing.T) {
	for module, itself := range map[string]bool{"plain": false, "starts": true} {
		t.Run(module, func(t *testing.T) {
			w := newWarmed(t, 2, "colorsys", module)
			old, first := w.until("have standbys", nil)
			w.SetWarm(false, w.run)
			w.SetModules([]string{"colorsys", module, "sndhdr"}, 0)
			w.SetModules([]string{"colorsys"}, 0) // less is nothing new
			time.Sleep(50 * time.Millisecond)     // time for what must not happen
			if _, now := w.until("still have standbys", nil); !slices.Equal(now, first) {
				t.Fatalf("standbys were %v and are %v while a generation starts", first, now)
			}
			if got, want := w.becomes(1), "1 1 colorsys "+module; got != want {
				t.Errorf("rank 1 says %q, want %q", got, want)
			}
			w.SetWarm(true, w.run)
			now, second := w.until("have standbys with all modules", func(sources []*source) bool {
				return !slices.ContainsFunc(sources, func(src *source) bool { return src.outdated(w.modules) })
			})
			if same := now[0] == old[0]; same == itself || slices.Contains(second, first[0]) {
				t.Errorf("the same source: %v; standbys %v, before %v", same, second, first)
			}
			for local := range 2 {
				if got := w.becomes(local); !strings.Contains(got, "sndhdr") {
					t.Errorf("rank %d says %q", local, got)
				}
			}
		})
	}
}
