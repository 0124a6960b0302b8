//go:build linux

package checkpoint

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/test/trainer"
)

var (
	kills      = flag.Int("kills", 90, "kills of the trainer without torch")
	torchKills = flag.Int("torch-kills", 10, "kills of the trainer with torch")
	seed       = flag.Uint64("seed", 0, "seed of the random moments; 0: a new one, which is said")
)

const (
	pods   = 2
	python = "/opt/holdfast-python/venv/bin/python3"
)

// gang has the pods of one job, and a coordinator.
type gang struct {
	t     *testing.T
	c     *coordtest.Coordinator
	d     *coordtest.Gang
	pods  []*pod
	log   string
	rng   *rand.Rand
	kills int
	how   map[string]int
	// log lines up to the last position read, by generation
	reported map[uint64]*reported
	readTo   int64
	// perPod is the number of ranks of each pod, ranks the number of all ranks.
	perPod, ranks int
}

func newGang(t *testing.T, perPod, stateBytes int, storage string, command ...string) *gang {
	t.Helper()
	return newGangOf(t, pods, perPod, stateBytes, storage, command...)
}

// newGangOf returns a gang with that many pods.
func newGangOf(t *testing.T, pods, perPod, stateBytes int, storage string, command ...string) *gang {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	g := &gang{
		t:        t,
		c:        coordtest.Start(t),
		log:      filepath.Join(t.TempDir(), "log"),
		rng:      rand.New(rand.NewPCG(s, 1)),
		how:      map[string]int{},
		reported: map[uint64]*reported{},
		perPod:   perPod,
		ranks:    pods * perPod,
	}
	command = append([]string{command[0], "-m", "torch.distributed.run", fmt.Sprintf("--nproc-per-node=%d", perPod)}, command[1:]...)
	env := map[string]string{"HOLDFAST_RANKS": fmt.Sprint(perPod), "HOLDFAST_STATE_BYTES": fmt.Sprint(stateBytes), "HOLDFAST_STANDBYS": "off",
		"HOLDFAST_GRACE_SECONDS": "5"} // in this test no replacement comes: a terminating pod waits for one until its grace period is over
	if storage != "" {
		env["HOLDFAST_STORAGE"], env["HOLDFAST_GANG"], env["HOLDFAST_JOB_UID"] = storage, "gang", "uid"
	}
	var names []string
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		names = append(names, name)
		g.pods = append(g.pods, startPod(t, g.c, name, env, append(slices.Clone(command), g.log)...))
	}
	lead := g.c.Lead
	if storage != "" {
		lead = g.c.LeadAndStore
	}
	g.d = lead(names...)
	return g
}

// seen returns the newest step that all ranks hold in memory, read without the agents.
func (g *gang) seen() (common uint64, uneven bool) {
	var inventories [][]int64
	for _, p := range g.pods {
		for local := range g.perPod {
			inventories = append(inventories, p.sealed(local))
		}
	}
	newest := func(steps []int64) int64 {
		if len(steps) == 0 {
			return 0
		}
		return steps[len(steps)-1]
	}
	var points [][]protocol.Point
	for _, i := range inventories {
		points = append(points, protocoltest.FirstBranch(i...))
		uneven = uneven || newest(i) != newest(inventories[0])
	}
	return uint64(restore.InMemory(points, nil).Step), uneven
}

// mustGoOn ends the test if the job was given up.
func (g *gang) mustGoOn() {
	g.t.Helper()
	if why := g.d.GivenUp(); why != "" {
		g.t.Fatalf("the job was given up: %s", why)
	}
}

// running waits until a generation above the given one runs on all ranks. running returns the generation and the pids of the ranks.
func (g *gang) running(above uint64) (generation uint64, pids []int) {
	g.t.Helper()
	eventually.Holds(g.t, fmt.Sprintf("a generation above %d on all ranks", above), func() (bool, any) {
		g.mustGoOn()
		pids, generation = pids[:0], 0
		for i := range g.pods {
			r := g.c.Report(g.pods[i].Name)
			if r == nil || r.State != v1.State_STATE_RUNNING || r.Generation <= above || generation != 0 && r.Generation != generation {
				return false, r
			}
			generation = r.Generation
			for _, rank := range r.Rank {
				if rank.Pid != 0 {
					pids = append(pids, int(rank.Pid))
				}
			}
		}
		select {
		case <-g.pods[0].Ended():
			g.t.Fatal("pod 0 ended by itself")
		default:
		}
		return len(pids) == g.ranks, pids
	})
	return generation, pids
}

// watch reads memory until the time of the kill, and returns the newest step that all ranks held.
func (g *gang) watch(start uint64, wait time.Duration, betweenSeals bool) uint64 {
	g.t.Helper()
	var best uint64
	var first time.Time
	deadline := time.Now().Add(eventually.Timeout)
	pause := time.Millisecond
	for ; time.Now().Before(deadline); time.Sleep(pause) {
		common, uneven := g.seen()
		best = max(best, common)
		if best <= start { // wait for at least one step of this generation, so that there is a step to lose
			continue
		}
		pause = 100 * time.Microsecond // from now on timing matters; before, ranks need the CPU more
		if first.IsZero() {
			first = time.Now()
		}
		since := time.Since(first)
		if betweenSeals && uneven && since > wait/4 || since > wait {
			return best
		}
	}
	g.t.Fatalf("no step above %d was held by all ranks within %s", start, eventually.Timeout)
	return 0
}

// run kills n times, and compares the state after each restart with the state before the kill.
func (g *gang) run(n int) {
	generation, pids := g.running(0)
	start := uint64(0)
	for g.kills < n {
		between := g.rng.IntN(2) == 0
		best := g.watch(start, time.Duration(g.rng.IntN(60_000))*time.Microsecond, between)
		g.kill(pids, between)
		old := generation
		generation, pids = g.running(old)
		start = g.checkRestart(old, generation, best)
	}
}

// kill kills a rank, sometimes two, sometimes with the agent of its pod.
func (g *gang) kill(pids []int, between bool) {
	victim := g.rng.IntN(g.ranks)
	_ = syscall.Kill(pids[victim], syscall.SIGKILL)
	g.kills++
	what := fmt.Sprintf("rank %d", victim)
	if between {
		g.how["between seals"]++
	}
	switch g.rng.IntN(6) {
	case 0:
		_ = syscall.Kill(pids[(victim+1)%g.ranks], syscall.SIGKILL)
		what += " and the next"
		g.how["two ranks"]++
	case 1:
		if pid, ok := g.pods[victim/g.perPod].LookForAgent(); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			what += " and its agent"
			g.how["with the agent"]++
		}
	}
	g.t.Logf("kill %d: %s", g.kills, what)
}

// checkRestart reads the log: where the new generation started, and which steps the old generation had finished.
func (g *gang) checkRestart(old, generation, best uint64) uint64 {
	g.t.Helper()
	var was, is reported
	eventually.Holds(g.t, fmt.Sprintf("all ranks of generation %d restored", generation), func() (bool, any) {
		was, is = g.read(old), g.read(generation)
		return len(is.starts) == g.ranks, is.starts
	})
	start := is.starts[0]
	for _, s := range is.starts {
		if s != start {
			g.t.Fatalf("generation %d: ranks restored different steps: %v", generation, is.starts)
		}
	}
	if start < best {
		g.t.Fatalf("generation %d restored step %d, but step %d had been held by all ranks: LOST", generation, start, best)
	}
	if start < was.saved {
		g.t.Fatalf("generation %d restored step %d, but every rank's save of step %d had returned: LOST", generation, start, was.saved)
	}
	for step := start + 1; step < was.finished; step++ {
		if !was.skipped[step] { // if the machine was too slow for a save, the interval between saves was longer
			g.t.Fatalf("generation %d restored step %d after step %d was finished, and step %d was saved: more than one save interval computed again", generation, start, was.finished, step)
		}
		g.how["a save skipped"]++
	}
	return start
}

// reported has what the trainers of one generation wrote to the log.
type reported struct {
	starts   []uint64
	finished uint64          // newest step that any rank finished
	saved    uint64          // newest step whose save returned true on all ranks
	skipped  map[uint64]bool // steps that at least one rank did not save
	saves    map[uint64]int  // how many ranks saved a step
}

// read reads the log from the last position on, because the log gets long, and returns the content for one generation.
func (g *gang) read(generation uint64) reported {
	g.t.Helper()
	if f, err := os.Open(g.log); err == nil {
		defer f.Close()
		raw, err := io.ReadAll(io.NewSectionReader(f, g.readTo, 1<<40))
		if err != nil {
			g.t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if !strings.HasSuffix(line, "\n") {
				break // it is being written
			}
			g.readTo += int64(len(line))
			g.hear(strings.Fields(line))
		}
	}
	if out := g.reported[generation]; out != nil {
		return *out
	}
	return reported{}
}

// hear parses one line of the log: generation, rank, event, step.
func (g *gang) hear(words []string) {
	g.t.Helper()
	if len(words) < 4 {
		return
	}
	generation, err1 := strconv.ParseUint(words[0], 10, 64)
	step, err2 := strconv.ParseUint(words[3], 10, 64)
	if err1 != nil || err2 != nil {
		return // a kill may cut a line at a page boundary of the file; the next rank continues there
	}
	out := g.reported[generation]
	if out == nil {
		out = &reported{saves: map[uint64]int{}, skipped: map[uint64]bool{}}
		g.reported[generation] = out
	}
	switch words[2] {
	case "torn":
		g.t.Fatalf("generation %d, rank %s: the state of step %d was TORN", generation, words[1], step)
	case "start":
		out.starts = append(out.starts, step)
	case "done":
		out.finished = max(out.finished, step)
	case "skipped":
		out.skipped[step] = true
	case "saved":
		if out.saves[step]++; out.saves[step] == g.ranks {
			out.saved = max(out.saved, step)
		}
	}
}

// interpreter is a Python without torch: the system's, if there is one.
var interpreter = func() string {
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return "python3"
}()

func TestKillsWithoutTorch(t *testing.T) {
	const state = 100_000
	g := newGang(t, 2, state+16384, "", interpreter, trainer.File(t, trainer.Script), "0", fmt.Sprint(state))
	g.run(*kills)
	g.checkMemory()
	g.checkSaves()
	if *kills >= 90 && (g.how["between seals"] < 10 || g.how["two ranks"] == 0 || g.how["with the agent"] == 0) {
		t.Fatalf("%d kills, but only %v: not every kind was tried", g.kills, g.how)
	}
	t.Logf("%d kills (%v): nothing acknowledged was lost, nothing torn was restored", g.kills, g.how)
}

func TestKillsWithTorch(t *testing.T) {
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("TORCH IS MISSING at %s (%v): kills of a trainer with torch are NOT tested here", python, err)
	}
	script := trainer.File(t, trainer.Torch)
	// Each pod has one rank, because nearly all of the time is the import of torch. Package story kills two ranks with torch in one pod.
	g := newGang(t, 1, 1<<20, "", python, script)
	g.run(*torchKills)
	g.checkMemory()
	g.checkSaves()
	t.Logf("%d kills (%v): nothing acknowledged was lost, nothing torn was restored", g.kills, g.how)
	g.compareLosses()
}

// compareLosses runs the same trainer without kills, and compares the losses bit for bit.
func (g *gang) compareLosses() {
	g.t.Helper()
	raw, err := os.ReadFile(g.log)
	if err != nil {
		g.t.Fatal(err)
	}
	disturbed, _, err := trainer.Losses(string(raw))
	if err != nil {
		g.t.Fatal(err)
	}
	last := int64(0)
	for at := range disturbed {
		last = max(last, at.Step)
	}
	undisturbed, err := trainer.Undisturbed(g.t.Context(), python, g.ranks, last)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := trainer.Compare(disturbed, undisturbed); err != nil {
		g.t.Fatal(err)
	}
	g.t.Logf("%d losses up to step %d are bit for bit those of an undisturbed run", len(disturbed), last)
}
